"""The data types of decisions: the snapshot of a job or queue, the actions, and helpers that read pods."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from harness.core.kubernetes import Object, condition
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.conditions import parsed
from harness.torchrun_controller.api.models import JobStatus, QueueStatus, Workers
from harness.torchrun_controller.api.rejected import Rejected
from harness.torchrun_controller.decide.last_lines import explained
from harness.torchrun_controller.plan.capacity import Capacity

RUNS_STEP = timedelta(seconds=30)
"""The resolution of an init container's run time in a status."""


@dataclass(frozen=True)
class Create:
    """Create an object unless an object with its name exists."""

    document: Object


@dataclass(frozen=True)
class Check:
    """Let the API server validate an object in a strict dry run. After a rejection, skip the other actions.

    `alike` is the object with a name that is the same for all jobs. If the API server has recently accepted
    an object with an equal `alike`, the dry run is skipped.
    """

    document: Object
    alike: Object


@dataclass(frozen=True)
class Delete:
    """Delete the object with the given UID, and all objects that it owns.

    If a resource version is given, an object that has changed since that version is not deleted.
    """

    api_version: str
    kind: str
    name: str
    uid: str
    resource_version: str | None = None


@dataclass(frozen=True)
class Finalizers:
    """Set the finalizers of the TorchrunQueue."""

    found: list[str]


@dataclass(frozen=True)
class DeleteParts:
    """Delete the Secrets and the StatefulSet that store the code of the job with the given UID."""

    uid: str


Action = Check | Create | Delete | DeleteParts | Finalizers


@dataclass(frozen=True)
class Decision:
    """The new status, the actions to execute, and the time of the next reconcile if no event occurs."""

    status: JobStatus
    actions: list[Action] = field(default_factory=list)
    wake: datetime | None = None
    unexplained: bool = False
    """Whether pods are late and no watched object shows the reason. The controller then reads the Events."""


@dataclass(frozen=True)
class QueueDecision:
    status: QueueStatus
    actions: list[Action] = field(default_factory=list)


@dataclass(frozen=True)
class Seen:
    """A snapshot of the objects of one job."""

    queue: Object | None = None
    jobset: Object | None = None
    workload: Object | None = None
    """Kueue's Workload for the JobSet."""
    pods: list[Object] = field(default_factory=list)
    claims: list[Object] = field(default_factory=list)
    capacity: Capacity | None = None
    """The nodes and their pods, or None if they are unknown."""
    waits_in: Object | None = None
    """The job's TorchrunQueue, used for the message of a job that waits for GPUs."""
    priority_classes: frozenset[str] | None = None
    """The names of the PriorityClasses, or None if the controller is not permitted to read them."""
    rejected: Rejected | None = None
    """The rejection, if the API server has just rejected one of the job's objects."""
    no_etcd: bool = False
    """Whether the job needs the default etcd and the Service of that etcd does not exist."""
    silent: tuple[datetime | None, datetime] | None = None
    """The time of the last log line if all ranks are silent, otherwise None; and the time of the next check.
    None if the logs were not checked."""
    warnings: list[Object] | None = None
    """The Events of the namespace, oldest first, or None if they were not read."""


@dataclass(frozen=True)
class SeenQueue:
    """A snapshot of the objects of one queue."""

    local_queue: Object | None = None
    resources: dict[tuple[str, str], Object] = field(default_factory=dict)
    """The existing objects of the queue's resource templates, by (kind, name)."""
    kai_queue: Object | None = None
    cluster_queue: Object | None = None
    """The ClusterQueue in the queue's spec, or None if it does not exist or its LocalQueue exists."""
    template: str | None = None
    """The error of the pod template, "" if the template was accepted, or None if it was not checked."""
    rejected: Rejected | None = None
    """The rejection, if the API server has just rejected one of the queue's objects."""


def owned(found: Object, uid: str) -> bool:
    """Return whether an object has an owner with the UID `uid`."""
    return any(owner.get("uid") == uid for owner in found["metadata"].get("ownerReferences") or [])


def ending(found: Object) -> bool:
    return bool(found["metadata"].get("deletionTimestamp"))


def attempt(pods: list[Object], jobset: Object) -> list[Object]:
    """Return the pods of the current attempt, without terminating pods of the previous attempt."""
    number = str((jobset.get("status") or {}).get("restarts") or 0)
    return [
        pod
        for pod in pods
        if not ending(pod) and (pod["metadata"].get("labels") or {}).get(names.ATTEMPT_LABEL, "0") == number
    ]


def counted(pods: list[Object]) -> Workers:
    """Return the number of pods per phase. Pods that are being scheduled or pull an image are pending."""
    phases = [(pod.get("status") or {}).get("phase") for pod in pods]
    return Workers(
        pending=sum(phase in (None, "Pending", "Unknown") for phase in phases),
        running=phases.count("Running"),
        ready=sum(
            phase == "Running" and condition(pod, "Ready").get("status") == "True"
            for pod, phase in zip(pods, phases, strict=True)
        ),
        failed=phases.count("Failed"),
        succeeded=phases.count("Succeeded"),
    )


def syncing(pods: list[Object]) -> bool:
    """Return whether a pod is fetching its workspace."""
    return any(
        initial["name"] == "workspace" and "running" in (initial.get("state") or {})
        for pod in pods
        for initial in (pod.get("status") or {}).get("initContainerStatuses") or []
    )


def workspaces(pods: list[Object]) -> dict[str, str]:
    """Return the commit or digest of each pod's fetched workspace, by pod name."""
    return {
        pod["metadata"]["name"]: str(ended["message"]).strip()
        for pod in pods
        for initial in (pod.get("status") or {}).get("initContainerStatuses") or []
        if initial["name"] == "workspace"
        and (ended := (initial.get("state") or {}).get("terminated") or {}).get("exitCode") == 0
        and ended.get("message")
    }


def hindrance(pods: list[Object], now: datetime) -> tuple[str, datetime | None]:
    """Return the reason why a pod does not run yet, as the kubelet or the scheduler reports it, or "".

    A running init container is also a reason. The text then contains its run time, and the second value is
    the time at which this text changes. Otherwise the second value is None.
    """
    for pod in pods:
        status, name = pod.get("status") or {}, pod["metadata"]["name"]
        for container in [
            *(status.get("initContainerStatuses") or []),
            *(status.get("containerStatuses") or []),
        ]:
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                text = f"{_which(pod, container)}{waiting['reason']}: {waiting.get('message', '')}"
                return f"{name}: {text}".rstrip(": "), None
        scheduled = condition(pod, "PodScheduled")
        if scheduled.get("status") == "False":
            return f"{name}: {scheduled.get('reason')}: {scheduled.get('message', '')}", None
    return _initialising(pods, now)


def _initialising(pods: list[Object], now: datetime) -> tuple[str, datetime | None]:
    """Return a text with the init container that still runs and its run time in steps of RUNS_STEP.

    With a resolution of seconds, each reconcile would change the status, and each change would trigger a
    reconcile. The second value is the time at which the text changes, or None.
    """
    for pod in pods:
        for container in (pod.get("status") or {}).get("initContainerStatuses") or []:
            running = (container.get("state") or {}).get("running") or {}
            if not running.get("startedAt") or (
                container.get("started") and _endless(pod, container["name"])
            ):
                continue
            ran = max(now - parsed(running["startedAt"]), timedelta(0)) // RUNS_STEP
            again = parsed(running["startedAt"]) + (ran + 1) * RUNS_STEP
            text = f"init container {container['name']} runs for {ran * RUNS_STEP.seconds} s"
            return f"{pod['metadata']['name']}: {text}", again
    return "", None


def lingering(pods: list[Object]) -> str:
    """Return a message if helper containers still run after every trainer has exited with 0, otherwise ""."""
    pods_of: dict[str, list[str]] = {}
    for pod in pods:
        statuses = (pod.get("status") or {}).get("containerStatuses") or []
        states = {each["name"]: each.get("state") or {} for each in statuses}
        if (states.get(names.TRAINER, {}).get("terminated") or {}).get("exitCode") != 0:
            return ""
        for name, state in states.items():
            if "running" in state:
                pods_of.setdefault(name, []).append(pod["metadata"]["name"])
    if not pods_of:
        return ""
    of = [
        f"container {name} of {where[0]}" + (f" and {len(where) - 1} more" if where[1:] else "")
        for name, where in sorted(pods_of.items())
    ]
    return (
        f"every trainer has ended with exit code 0, and the pods wait for {', '.join(of)}: make it a native "
        "sidecar (an init container with restartPolicy: Always)"
    )


def failure(pods: list[Object]) -> str:
    """Return the first failed pod and its error, or "". Later failures can be consequences of the first."""
    for pod in sorted(pods, key=_trainer_ended):
        status, name = pod.get("status") or {}, pod["metadata"]["name"]
        if status.get("phase") != "Failed":
            continue
        containers = status.get("containerStatuses") or []
        own = [each for each in containers if each["name"] == names.TRAINER]
        others = [each for each in containers if each["name"] != names.TRAINER]
        for container in [*(status.get("initContainerStatuses") or []), *own, *others]:
            ended = (container.get("state") or {}).get("terminated") or {}
            if ended.get("exitCode") and not _endless(pod, container["name"]):
                return f"{name}: {_which(pod, container)}{_exit(container['name'], ended)}"
        return f"{name}: {status.get('reason', 'Failed')}: {status.get('message', '')}".rstrip(": ")
    return ""


def _trainer_ended(pod: Object) -> str:
    """Return the time at which a pod's trainer ended, as sortable text, or "" if it has not ended."""
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        if container["name"] == names.TRAINER:
            ended = (container.get("state") or {}).get("terminated") or {}
            return str(ended.get("finishedAt") or "")
    return ""


def _which(pod: Object, container: Object) -> str:
    """Return the prefix of a message about a container: "" for the containers `trainer` and `workspace`."""
    name = container["name"]
    if name in (names.TRAINER, "workspace"):
        return ""
    initial = [each["name"] for each in (pod.get("status") or {}).get("initContainerStatuses") or []]
    return f"{'init container' if name in initial else 'container'} {name}: "


def _endless(pod: Object, name: str) -> bool:
    """Return whether a container is a native sidecar. Kubernetes ends a native sidecar with the pod."""
    initial = (pod.get("spec") or {}).get("initContainers") or []
    return any(each["name"] == name and each.get("restartPolicy") == "Always" for each in initial)


def _exit(container: str, ended: Object) -> str:
    code = f"{ended.get('reason', 'Error')}, exit code {ended['exitCode']}"
    message = str(ended.get("message") or "").strip()
    if container == names.TRAINER:
        return explained(code, message)
    if message and container != "workspace":  # The container `workspace` writes its own termination message.
        message = message.splitlines()[-1].strip()
    return f"{code}: {message}" if message else code
