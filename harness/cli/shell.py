"""Open a shell in a rank's pod, or in a copy of the pod if the rank has ended."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from harness.context import RunContext
from harness.core.errors import HarnessError, UsageError
from harness.core.kubernetes import Kube, Object
from harness.core.processes import environment
from harness.core.used_kubeconfigs import is_known
from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Launch
from harness.settings import Settings

START_SECONDS = 60
LIFE_SECONDS = 8 * 3600
"""The maximum lifetime of a copied pod in seconds, in case nothing deletes the copy."""
_COPIED_FIELDS = (
    *("nodeName", "nodeSelector", "tolerations", "volumes", "imagePullSecrets", "serviceAccountName"),
    *("dnsPolicy", "dnsConfig", "hostAliases", "securityContext", "runtimeClassName"),
    "automountServiceAccountToken",
)
_OMITTED_FIELDS = ("args", "resources", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle")


def shell(bundle: Bundle, rank: int, command: Sequence[str], context: RunContext) -> int:
    """Run `command` in a rank's pod, attached to this terminal. Return its exit code.

    Raises UsageError if the rank has no pod, or if its cluster or pod no longer exists.
    """
    settings = context.settings
    kube, target = cluster_of(bundle, settings)
    pod = bundle.ranks().get(rank)
    if pod is None:
        raise UsageError(f"the bundle has no pod for rank {rank}", hint=f"ranks: {list(bundle.ranks())}")
    launch = bundle.manifest.launch if bundle.manifest else None
    namespace = launch.namespace if launch else ""
    pod_object = kube.get("v1", "Pod", pod.name, namespace)
    if pod_object is None:
        raise UsageError(
            f"pod {namespace}/{pod.name} of rank {rank} no longer exists",
            hint="run the job again: a cluster keeps only the most recent launches",
        )
    if pod_object["status"].get("phase") == "Running":
        return _exec(settings, target, namespace, pod.name, container_of(pod_object, launch), command)
    container = container_of(pod_object, launch)
    copy = copied(pod_object, f"shell-{rank}-{secrets.token_hex(3)}", container)
    name = copy["metadata"]["name"]
    context.progress(
        f"rank {rank} has ended ({pod_object['status'].get('phase')}): starting {name}, a copy of its pod"
    )
    try:
        kube.apply(copy)
        kube.wait(
            f"pod {name} to run",
            "v1",
            "Pod",
            lambda pods: _runs(pods, name),
            seconds=START_SECONDS,
            namespace=namespace,
        )
        return _exec(settings, target, namespace, name, container, command)
    finally:
        kube.delete("v1", "Pod", name, namespace)


def copied(pod: Object, name: str, container: str | None = None) -> Object:
    """Return a pod with a copy of one container of `pod`, whose command is replaced by `sleep`.

    The container is the one named `container`, or the first one if none has this name. The copy has the same
    image, environment, volumes and node. No controller adopts it, and it requests no resources.
    """
    spec = pod["spec"]
    copied_fields: dict[str, Any] = {key: spec[key] for key in _COPIED_FIELDS if key in spec}
    source = next((each for each in spec["containers"] if each["name"] == container), spec["containers"][0])
    container_copy = {key: value for key, value in source.items() if key not in _OMITTED_FIELDS}
    container_copy["command"] = ["sleep", str(LIFE_SECONDS)]
    container_copy["env"] = [_literal(variable, pod) for variable in container_copy.get("env") or []]
    pod_spec = {"containers": [container_copy], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    metadata = {"name": name, "namespace": pod["metadata"]["namespace"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**copied_fields, **pod_spec}}


def _literal(variable: Object, pod: Object) -> Object:
    """Return an environment variable for the copied pod.

    If it refers to one of the pod's labels or annotations, which the copy does not have, it gets a literal
    value.
    """
    path = ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath", "")
    field, _, key = path.removeprefix("metadata.").partition("['")
    if field not in ("labels", "annotations"):
        return variable
    value = (pod["metadata"].get(field) or {}).get(key.removesuffix("']"), "")
    return {"name": variable["name"], "value": value}


def _runs(pods: dict[str, Object], name: str) -> str | None:
    status = pods.get(name, {}).get("status", {})
    if status.get("phase") == "Running":
        return None
    waiting = [
        c["state"]["waiting"] for c in status.get("containerStatuses") or [] if "waiting" in c["state"]
    ]
    return f"{status.get('phase', 'not created')} {waiting or ''}"


def cluster_of(bundle: Bundle, settings: Settings) -> tuple[Kube, list[str]]:
    """Return a Kubernetes client for the bundle's cluster, and kubectl's options for this cluster.

    Raises UsageError if the cluster no longer exists, or if the bundle names a kubeconfig that the user has
    not used on this machine. Raises HarnessError if the cluster does not respond.
    """
    manifest = bundle.manifest
    cluster = manifest.cluster if manifest else {}
    kubeconfig, context = cluster.get("kubeconfig"), cluster.get("context")
    attached = bool(manifest and manifest.launch and manifest.launch.attached)
    if not kubeconfig or not Path(kubeconfig).is_file():
        if attached:
            raise UsageError(
                f"kubeconfig {kubeconfig}, which `harness attach` used, no longer exists",
                hint="attach to the job again with `harness attach --kubeconfig FILE`",
            )
        raise UsageError(
            f"the cluster of {bundle.path} no longer exists",
            hint="run the job again with KEEP_CLUSTER=true, which keeps the cluster, and then use `harness "
            "shell`",
        )
    is_named = settings.kubeconfig is not None and settings.kubeconfig.absolute() == Path(kubeconfig)
    if not is_named and not is_known(settings.state_dir, Path(kubeconfig)):
        raise UsageError(
            f"the bundle names the kubeconfig {kubeconfig}, which the harness has not used on this machine",
            hint=f"if you trust this file, set HARNESS_KUBECONFIG={kubeconfig} and run the command again",
        )
    digest = sha256(f"{kubeconfig} {context}".encode()).hexdigest()[:12]
    kube = Kube(Path(kubeconfig), context or None, settings.state_dir / "shell" / f"{digest}.json")
    if (silence := kube.silence()) is not None:
        hint = (
            "check the connection with `kubectl get pods`"
            if attached
            else "if the cluster is paused, run `harness resume`"
        )
        raise HarnessError(f"the cluster does not respond: {silence}", hint=hint)
    return kube, ["--kubeconfig", str(kubeconfig), *(["--context", str(context)] if context else [])]


def container_of(pod: Object, launch: Launch | None) -> str:
    """Return the name of the pod's container in which the ranks run. Sidecars may precede it in the spec."""
    names = [str(each["name"]) for each in pod["spec"]["containers"]]
    return launch.container if launch is not None and launch.container in names else names[0]


def _exec(
    settings: Settings, target: list[str], namespace: str, name: str, container: str, command: Sequence[str]
) -> int:
    terminal = ["-t"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    words = [settings.kubectl_bin, *target, "-n", namespace, "exec", "-i", *terminal, name, "-c", container]
    try:
        words += ["--", *(command or ["bash"])]
        return subprocess.run(words, env=environment(), check=False).returncode
    except FileNotFoundError:
        raise HarnessError(f"there is no {settings.kubectl_bin}", hint="`harness doctor --fix`") from None
