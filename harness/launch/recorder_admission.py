"""Install the recorder's admission policy on a cluster, show what it records, and remove it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import DynamicApiError

from harness.core.errors import HarnessError, UsageError
from harness.core.kubernetes import NOT_SERVED, Kube, Object
from harness.launch import recorder_policy as policy

FORBIDDEN = 403
_SELECTOR = ",".join(f"{name}={value}" for name, value in policy.FILES.items())
_TERMINAL_PHASES = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Unrecorded:
    """A container that is not recorded, and the reason."""

    namespace: str
    pod: str
    container: str
    why: str


@dataclass(frozen=True)
class Status:
    """The state of the recorder on a cluster."""

    installed: bool
    with_files: list[str] = field(default_factory=list)
    """Namespaces that contain the recorder's files."""
    outdated: list[str] = field(default_factory=list)
    """Namespaces in `with_files` whose files are from a different version."""
    without_files: list[str] = field(default_factory=list)
    """Namespaces that lack the recorder's files, although they or their pods request the recorder."""
    recorded: int = 0
    """The number of running or waiting containers to which the recorder was added."""
    unrecorded: list[Unrecorded] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Return whether every pod and namespace that requests the recorder has it."""
        return self.installed and not (self.outdated or self.without_files or self.unrecorded)


def require(kube: Kube) -> None:
    """Raise UsageError if the cluster's Kubernetes version does not serve the policy's API."""
    try:
        kube.resource(policy.API, policy.POLICY)
    except NOT_SERVED:
        raise UsageError(
            f"the recorder needs {policy.POLICY} in {policy.API}, which this cluster does not serve; "
            "Kubernetes "
            f"{policy.SINCE} and later serve it",
            hint="add the fields from `harness recorder print --pod --namespace NAME` to your pods instead",
        ) from None


def install(kube: Kube, namespaces: Iterable[str]) -> list[str]:
    """Apply the recorder's files, the policy and its bindings. Return the namespaces that received the files.

    If `namespaces` is empty, all labelled namespaces receive the files. Raises UsageError or HarnessError.
    """
    require(kube)
    with _readable("install the recorder"):
        existing = {each["metadata"]["name"]: each for each in kube.objects("v1", "Namespace")}
        requested = list(dict.fromkeys(namespaces))
        if unknown := [name for name in requested if name not in existing]:
            raise UsageError(f"--namespace: these namespaces do not exist: {', '.join(unknown)}")
        targets = requested or sorted(name for name, each in existing.items() if _labelled(each))
        # Apply the files first, because pods admitted before them would start unrecorded.
        for document in (*map(policy.config_map, targets), *policy.documents()):
            kube.apply(document)
    return targets


def uninstall(kube: Kube) -> list[str]:
    """Delete the policy, its bindings and the files in all namespaces. Return the deleted objects' names."""
    deleted: list[str] = []
    with _readable("uninstall the recorder"):
        for document in reversed(policy.documents()):
            name = document["metadata"]["name"]
            if kube.get(document["apiVersion"], document["kind"], name) is not None:
                kube.delete(document["apiVersion"], document["kind"], name)
                deleted.append(f"{document['kind']} {name}")
        for config_map in kube.objects("v1", "ConfigMap", selector=_SELECTOR):
            namespace, name = config_map["metadata"]["namespace"], config_map["metadata"]["name"]
            kube.delete("v1", "ConfigMap", name, namespace)
            deleted.append(f"ConfigMap {namespace}/{name}")
    return deleted


def status(kube: Kube) -> Status:
    """Return the recorder's state on the cluster, including the containers that request it but do not have
    it."""
    with _readable("read the state of the recorder"):
        installed = all(
            kube.get(each["apiVersion"], each["kind"], each["metadata"]["name"]) is not None
            for each in policy.documents()
        )
        labelled = {each["metadata"]["name"] for each in kube.objects("v1", "Namespace") if _labelled(each)}
        files = {
            each["metadata"]["namespace"]: each
            for each in kube.objects("v1", "ConfigMap", selector=_SELECTOR)
        }
        pods = kube.objects("v1", "Pod")
    opted_in = [pod for pod in pods if _is_requested(pod, labelled)]
    active_pods = [pod for pod in opted_in if (pod.get("status") or {}).get("phase") not in _TERMINAL_PHASES]
    needed = {*labelled, *(pod["metadata"]["namespace"] for pod in active_pods)}
    return Status(
        installed=installed,
        with_files=sorted(files),
        outdated=sorted(
            name for name, each in files.items() if each.get("data") != policy.config_map("")["data"]
        ),
        without_files=sorted(needed - files.keys()),
        recorded=sum(policy.is_recorded(each) for pod in active_pods for each in pod["spec"]["containers"]),
        unrecorded=[each for pod in active_pods for each in _unrecorded(pod)],
    )


def _labelled(namespace: Object) -> bool:
    return (namespace["metadata"].get("labels") or {}).get(policy.RECORD) == "true"


def _is_requested(pod: Object, labelled: set[str]) -> bool:
    """Return whether a pod or its namespace requests the recorder."""
    label = (pod["metadata"].get("labels") or {}).get(policy.RECORD)
    return label in ("true", "env") or (label != "false" and pod["metadata"]["namespace"] in labelled)


def _unrecorded(pod: Object) -> Iterator[Unrecorded]:
    containers = pod["spec"]["containers"]
    if any(map(policy.is_recorded, containers)):
        return  # If one container is recorded, the pod's other containers count as sidecars.
    for container in containers:
        reason = (
            policy.why_not(pod, container)
            or "the pod was created before the policy was installed, or the policy failed"
        )
        yield Unrecorded(pod["metadata"]["namespace"], pod["metadata"]["name"], container["name"], reason)


class _readable:
    """A context manager that converts an API server error into a UsageError or HarnessError with a short
    message."""

    def __init__(self, doing: str) -> None:
        self._operation = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, (ApiException, DynamicApiError)):
            return
        if error.status == FORBIDDEN:
            raise UsageError(
                f"cannot {self._operation}: you do not have the necessary permissions",
                hint="ask a cluster administrator to apply the output of `harness recorder print`",
            ) from None
        message = " ".join(str(error.body or "").split())[:300]
        raise HarnessError(
            f"cannot {self._operation}: HTTP {error.status} {error.reason} {message}"
        ) from None
