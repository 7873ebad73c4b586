"""Find the pods of a job to which code can be sent, and the container in each pod that receives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.core.errors import UsageError
from harness.core.kubernetes import Kube, Object
from harness.torchrun_sync.channel import Open
from harness.torchrun_sync.exec_channel import opening

WAITING, TRAINER = "workspace", "trainer"
"""The names of the containers that receive code. `workspace` waits for the code, or stores the code for other
pods. `trainer` runs the code."""
CONTROL = "/dev/shm/torchrun-sync"  # noqa: S108
"""The folder with a pod's control files. Each pod has its own folder. The folder is writable even if the
container's root filesystem is read-only."""
STORE = ".torchrun"
"""The folder in a workspace that contains the code. The top folder of a tree has no entry of this name."""


@dataclass(frozen=True)
class Target:
    """A running container in a pod to which code can be sent."""

    pod: str
    uid: str
    container: str
    mount: str

    def open(self, kube: Kube, namespace: str) -> Open:
        return opening(kube, namespace, self.pod, self.container, f"{self.mount}/{STORE}", CONTROL)


def target(pod: Object) -> Target | None:
    """Return the running container in a pod to which code can be sent, or None if there is none, for example
    because the pod is terminating."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    if metadata.get("deletionTimestamp") or status.get("phase") in ("Succeeded", "Failed"):
        return None
    for kind, name in (("initContainers", WAITING), ("containers", TRAINER), ("containers", WAITING)):
        container = next((each for each in pod["spec"].get(kind) or [] if each["name"] == name), None)
        statuses = status.get(f"{kind[:-1]}Statuses") or []
        running = any(each["name"] == name and "running" in each["state"] for each in statuses)
        if container is not None and running:
            return Target(metadata["name"], metadata["uid"], name, _mount(pod, container))
    return None


def _mount(pod: Object, container: Object) -> str:
    mounts = container.get("volumeMounts") or []
    paths = [mount["mountPath"] for mount in mounts if mount["name"] == WAITING]
    if not paths:
        raise UsageError(
            f"pod {pod['metadata']['name']} has no volume `{WAITING}` in its container `{container['name']}`",
            hint="submit the job with its code: `harness torchrun submit`",
        )
    return str(paths[0]).rstrip("/")


def wait(
    kube: Kube,
    namespace: str,
    selector: str,
    count: int,
    seconds: float,
    end_reason: Callable[[], str | None],
) -> list[Target]:
    """Wait until `count` pods have a running container that can receive code, and return these containers.

    `end_reason` returns the reason why the containers will never run, or None if they may still run. Raises
    UsageError with this reason, or WaitError if the containers are not running within `seconds`.
    """

    def done(pods: Mapping[str, Object]) -> str | None:
        if reason := end_reason():
            raise UsageError(f"no pod can receive the code: {reason}")
        ready = [each for each in map(target, pods.values()) if each]
        return None if len(ready) == count else f"{len(ready)} of {count} pods are running: {_phases(pods)}"

    awaited = f"{count} pods that can receive code"
    pods = kube.wait(awaited, "v1", "Pod", done, seconds=seconds, namespace=namespace, selector=selector)
    return [each for each in map(target, pods.values()) if each]


def _phases(pods: Mapping[str, Object]) -> str:
    phases = {name: (pod.get("status") or {}).get("phase") for name, pod in pods.items()}
    return ", ".join(f"{name} {phase}" for name, phase in phases.items()) or "none"
