"""Run a training job's helper pod, which mounts the ranks' volumes, runs a command and prints the result.

The pod does not have the launch's label, so it does not count as a rank. It has the ranks' tolerations, node
selector, node affinity and security context.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed
from urllib3.exceptions import HTTPError

from harness.core import pod_security
from harness.core.errors import HarnessError, WaitError
from harness.core.kubernetes import Kube, Object
from harness.core.kubernetes_retries import reason_of
from harness.core.progress import Progress
from harness.evidence.kubernetes.objects import items, mapping
from harness.launch.labels import NONCE_LABEL
from harness.launch.workloads import training_volumes
from harness.launch.workloads.base import Surroundings
from harness.provision.images import scripts

SERVED_SECONDS = 60.0
PROGRESS_SECONDS = 10.0
PLACED = ("tolerations", "nodeSelector", "securityContext", "priorityClassName", "imagePullSecrets")
"""Fields that are copied from the ranks' pod spec to the helper pod."""


@dataclass(frozen=True)
class Program:
    """A helper pod's command, and its timeouts."""

    name: str
    """The name of the pod. The part after the last hyphen is also the name of the container."""
    words: Sequence[str]
    does: str
    """A description of the command for messages, such as "the audit of the checkpoints"."""
    start_seconds: float
    """The maximum time until the container runs, in seconds. It includes scheduling and the image pull."""
    seconds: float
    """The command's timeout in seconds."""
    writes: bool = False
    """Whether the command writes to the volume for outputs. Otherwise, all volumes are mounted read-only."""
    secret: str | None = None
    """A Secret in the launch's namespace whose keys become environment variables."""


@dataclass(frozen=True)
class Volumes:
    """The volumes and the spec of the ranks' pods, and whether the volumes require that all pods run on one
    node."""

    mounts: Sequence[training_volumes.Mount]
    one_node: bool
    """Whether all pods must run on one node."""
    ranks: Object
    """The pod spec of the ranks' pods."""


def printed(program: Program, volumes: Volumes, surroundings: Surroundings, progress: Progress) -> str:
    """Run the command in a helper pod.

    Return the last JSON document that the command prints, or {"error": …}.
    """
    kube, namespace = surroundings.kube, surroundings.namespace
    try:
        _create_pod(kube, pod(program, volumes, surroundings))
        phase = _final_phase(kube, namespace, program, progress)
        text = _log(kube, namespace, program)
    except (ApiException, HTTPError) as error:
        return _failed(reason_of(error))
    except HarnessError as error:
        return _failed(f"{error}")
    document = next((line for line in reversed(text.splitlines()) if line.startswith("{")), "")
    try:
        json.loads(document)
    except ValueError:
        return _failed(
            f"expected a JSON document from the pod, but the pod {phase.lower()} and its log ends with "
            f"{text.strip()[-300:]!r}"
        )
    return document + "\n"


def pod(program: Program, volumes: Volumes, surroundings: Surroundings) -> Object:
    """Return the helper pod for a command."""
    pod_mounts = [one if program.writes else replace(one, read_only=True) for one in volumes.mounts]
    own = (items(volumes.ranks, "containers") or [{}])[0].get("securityContext")
    container = {
        "name": program.name.rpartition("-")[2],
        "image": surroundings.image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(program.words),
        "workingDir": "/workspace",
        "volumeMounts": [*training_volumes.mounts(pod_mounts), *surroundings.scripts],
        **({"securityContext": own} if own else {}),
        **({"envFrom": [{"secretRef": {"name": program.secret}}]} if program.secret else {}),
    }
    script_volumes = scripts.volumes(surroundings.scripts) if surroundings.scripts else []
    spec: Object = {
        **{name: volumes.ranks[name] for name in PLACED if volumes.ranks.get(name)},
        "restartPolicy": "Never",
        "activeDeadlineSeconds": int(program.start_seconds + program.seconds),
        "containers": [container],
        "volumes": [*training_volumes.pod_volumes(pod_mounts), *script_volumes],
    }
    pod_security.harden(spec, root=True)  # The pod keeps the ranks' user, who owns the files.
    affinity = _node_affinity(surroundings) if volumes.one_node else {}
    if not affinity and (node_affinity := mapping(volumes.ranks, "affinity", "nodeAffinity")):
        affinity = {"nodeAffinity": node_affinity}
    if affinity:
        spec["affinity"] = affinity
    if surroundings.pull_secret is not None:
        pull_secrets = [{"name": surroundings.pull_secret}]
        spec["imagePullSecrets"] = [
            *(e for e in spec.get("imagePullSecrets") or [] if e not in pull_secrets),
            *pull_secrets,
        ]
    metadata = {"name": program.name, "namespace": surroundings.namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@retry(
    retry=retry_if_exception(lambda error: isinstance(error, ApiException) and error.status in (500, 503)),
    stop=stop_after_delay(SERVED_SECONDS),
    wait=wait_fixed(1),
    reraise=True,
)
def _create_pod(kube: Kube, document: Object) -> None:
    """Create the pod. Retry, because a fault that is injected into the training may also make a webhook
    restart."""
    kube.apply(document)


def _node_affinity(surroundings: Surroundings) -> Object:
    """Return an affinity to a node where a rank runs or ran, because the volume is attached to that node."""
    selector = f"{NONCE_LABEL}={surroundings.nonce}"
    pods = surroundings.kube.objects("v1", "Pod", surroundings.namespace, selector=selector)
    names = sorted({pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")})
    match = {"key": "metadata.name", "operator": "In", "values": names[:1]}
    required = {"nodeSelectorTerms": [{"matchFields": [match]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}} if names else {}


def _final_phase(kube: Kube, namespace: str, program: Program, progress: Progress) -> str:
    """Wait until the pod terminates. Return the pod's phase.

    The last line of the pod's log is reported in progress messages. Raises WaitError.
    """

    def missing(pods: dict[str, Object], *phases: str) -> str | None:
        pod = pods.get(program.name) or {}
        phase = mapping(pod, "status").get("phase", "not there")
        return None if phase in phases else f"pod {program.name} is {phase}{_waiting_reason(pod)}"

    def wait(seconds: float, *phases: str) -> None:
        wait_options = {"seconds": seconds, "namespace": namespace}
        kube.wait(program.does, "v1", "Pod", lambda pods: missing(pods, *phases), **wait_options)  # type: ignore[arg-type]

    wait(program.start_seconds, "Running", "Succeeded", "Failed")
    last, waited_seconds = "", 0.0
    while True:
        try:
            wait(PROGRESS_SECONDS, "Succeeded", "Failed")
            break
        except WaitError as error:
            waited_seconds += PROGRESS_SECONDS
            if waited_seconds > program.seconds:
                raise WaitError(program.does, error.last_seen, waited_seconds) from None
        lines = _log(kube, namespace, program, tail=1).splitlines()
        if lines and lines[-1] != last:
            last = lines[-1]
            progress(last)
    final_pod = kube.get("v1", "Pod", program.name, namespace) or {}
    return str(mapping(final_pod, "status").get("phase", "gone"))


def _waiting_reason(pod: Object) -> str:
    """Return why a pod does not start, or "" if its status contains no reason."""
    waiting = [mapping(one, "state", "waiting") for one in items(pod, "status", "containerStatuses")]
    conditions = [one for one in items(pod, "status", "conditions") if one.get("status") == "False"]
    texts = [one.get("message") or one.get("reason") for one in (*waiting, *conditions)]
    return "".join(f" ({text})" for text in texts[:1] if text)


def _log(kube: Kube, namespace: str, program: Program, tail: int | None = None) -> str:
    options = {"tail_lines": tail} if tail else {}
    return str(
        client.CoreV1Api(kube.dynamic.client).read_namespaced_pod_log(program.name, namespace, **options)
    )


def _failed(error: str) -> str:
    return json.dumps({"error": error}) + "\n"
