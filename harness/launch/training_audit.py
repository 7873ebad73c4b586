"""Look at the checkpoints of a training that has ended: one pod with the same volumes, which only reads.

What it prints (harness/workers/training/audit.py) is evidence: training-audit.json.
"""

from __future__ import annotations

import json
from dataclasses import replace

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed
from urllib3.exceptions import HTTPError

from harness.core.errors import HarnessError
from harness.core.kubernetes import Kube, Object
from harness.core.progress import Progress
from harness.core.retries import reason_of
from harness.launch import claims, training
from harness.launch.names import NONCE_LABEL
from harness.launch.training import Training
from harness.launch.workload import Surroundings

FILE = "training-audit.json"
NAME = "training-audit"
SECONDS = 240.0
"""Longest time of an audit, its image there."""
SERVED_SECONDS = 60.0


def audit(trained: Training, surroundings: Surroundings, progress: Progress) -> str:
    """Return what the audit printed: one JSON document. Where it failed, that says so: {"error": …}."""
    kube, namespace = surroundings.kube, surroundings.namespace
    progress("auditing the checkpoints")
    try:
        _made(kube, pod(trained, surroundings))
        phase = _ended(kube, namespace)
        text = str(client.CoreV1Api(kube.dynamic.client).read_namespaced_pod_log(NAME, namespace))
    except (ApiException, HTTPError) as error:
        return _failed(reason_of(error), progress)
    except HarnessError as error:
        return _failed(f"{error}", progress)
    document = next((line for line in reversed(text.splitlines()) if line.startswith("{")), "")
    try:
        json.loads(document)
    except ValueError:
        return _failed(f"its pod has {phase.lower()} and printed {text.strip()[-300:]!r}", progress)
    return document + "\n"


@retry(
    retry=retry_if_exception(lambda error: isinstance(error, ApiException) and error.status in (500, 503)),
    stop=stop_after_delay(SERVED_SECONDS),
    wait=wait_fixed(1),
    reraise=True,
)
def _made(kube: Kube, document: Object) -> None:
    """Create the pod. What struck the training may have struck a webhook of pods too, which then restarts."""
    kube.apply(document)


def pod(trained: Training, surroundings: Surroundings) -> Object:
    """Return the pod. It has no label of the launch and is none of its ranks."""
    asked = trained.asked
    _, shared = trained.volumes(surroundings)
    used = [replace(one, read_only=True) for one in shared.mounts]
    words = ["python3", "-m", "training.audit", "--run-dir", f"/out/{asked.run}", "--data-dir", "/data"]
    container = {
        "name": "audit",
        "image": surroundings.image,
        "imagePullPolicy": "IfNotPresent",
        "command": words,
        "workingDir": "/workspace",
        "volumeMounts": [*claims.mounts(used), *surroundings.scripts],
    }
    spec: Object = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": int(SECONDS),
        "containers": [container],
        "volumes": [*claims.pod_volumes(used), *training.script_volumes(surroundings)],
    }
    if shared.one_node:
        spec["affinity"] = _beside(surroundings)
    if surroundings.pull_secret is not None:
        spec["imagePullSecrets"] = [{"name": surroundings.pull_secret}]
    metadata = {"name": NAME, "namespace": surroundings.namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _beside(surroundings: Surroundings) -> Object:
    """Return the affinity to the node that the ranks ran on: it has the volume. Pods that ended count too."""
    selector = f"{NONCE_LABEL}={surroundings.nonce}"
    pods = surroundings.kube.objects("v1", "Pod", surroundings.namespace, selector=selector)
    names = sorted({pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")})
    match = {"key": "metadata.name", "operator": "In", "values": names[:1]}
    required = {"nodeSelectorTerms": [{"matchFields": [match]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}} if names else {}


def _ended(kube: Kube, namespace: str) -> str:
    """Wait for the end of the pod. Return its phase. Raises WaitError."""

    def waiting(pods: dict[str, Object]) -> str | None:
        phase = ((pods.get(NAME) or {}).get("status") or {}).get("phase", "not there")
        return None if phase in ("Succeeded", "Failed") else f"pod {NAME} is {phase}"

    kube.wait("the audit of the checkpoints", "v1", "Pod", waiting, seconds=SECONDS, namespace=namespace)
    found = kube.get("v1", "Pod", NAME, namespace) or {}
    return str((found.get("status") or {}).get("phase", "gone"))


def _failed(why: str, progress: Progress) -> str:
    progress(f"the checkpoints could not be audited: {why}")
    return json.dumps({"error": why}) + "\n"
