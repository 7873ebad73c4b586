"""What a cluster has of a job or a queue, and what to do about it, as data."""

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
"""The step in which a status counts how long an init container has run."""


@dataclass(frozen=True)
class Create:
    """Make an object where there is none of its name."""

    document: Object


@dataclass(frozen=True)
class Check:
    """Have the API server check an object in a strict dry run. What it refuses ends the actions.

    `alike`: the same object of a job with another name. One that was accepted a moment ago stands for all.
    """

    document: Object
    alike: Object


@dataclass(frozen=True)
class Delete:
    """Delete this very object with what it owns: not one of the same name that came after, and not one that
    changed since it was seen."""

    api_version: str
    kind: str
    name: str
    uid: str
    resource_version: str | None = None


@dataclass(frozen=True)
class Finalizers:
    """Set the finalizers of the queue itself."""

    found: list[str]


@dataclass(frozen=True)
class DeleteParts:
    """Delete what keeps the code of the job of this UID: its Secrets, and the pod that holds it."""

    uid: str


Action = Check | Create | Delete | DeleteParts | Finalizers


@dataclass(frozen=True)
class Decision:
    """What the status is to say, then what is to be done, and when to look again without an event."""

    status: JobStatus
    actions: list[Action] = field(default_factory=list)
    wake: datetime | None = None
    unexplained: bool = False
    """Whether pods are late and nothing that is watched says why: Events may."""


@dataclass(frozen=True)
class QueueDecision:
    status: QueueStatus
    actions: list[Action] = field(default_factory=list)


@dataclass(frozen=True)
class Seen:
    """The objects of one job, read at once."""

    queue: Object | None = None
    jobset: Object | None = None
    workload: Object | None = None
    """Kueue's object for the JobSet."""
    pods: list[Object] = field(default_factory=list)
    claims: list[Object] = field(default_factory=list)
    capacity: Capacity | None = None
    """None where it is not known."""
    waits_in: Object | None = None
    """The queue of a job that has a JobSet, for what is said while it waits."""
    priority_classes: frozenset[str] | None = None
    """None where the controller may not read them."""
    rejected: Rejected | None = None
    """What the API server has just refused."""
    no_etcd: bool = False
    """Whether the etcd of jobs that name no endpoint was looked for, and is not there."""
    silent: tuple[datetime | None, datetime] | None = None
    """Since when no rank has written, or None, and when to look again. None where it was not asked."""
    warnings: list[Object] | None = None
    """Events of the namespace, oldest first. None where they were not read."""


@dataclass(frozen=True)
class SeenQueue:
    local_queue: Object | None = None
    resources: dict[tuple[str, str], Object] = field(default_factory=dict)
    """(kind, name) → object, of the queue's resource templates."""
    kai_queue: Object | None = None
    template: str | None = None
    """What a check of its pod template found: "" when it is accepted, None where it was not checked now."""
    rejected: Rejected | None = None
    """What the API server has just refused."""


def owned(found: Object, uid: str) -> bool:
    """Return whether an object belongs to the one of this UID."""
    return any(owner.get("uid") == uid for owner in found["metadata"].get("ownerReferences") or [])


def ending(found: Object) -> bool:
    return bool(found["metadata"].get("deletionTimestamp"))


def attempt(pods: list[Object], jobset: Object) -> list[Object]:
    """Return the pods of the attempt that runs now. Those of the one before may still be ending."""
    number = str((jobset.get("status") or {}).get("restarts") or 0)
    return [
        pod
        for pod in pods
        if not ending(pod) and (pod["metadata"].get("labels") or {}).get(names.ATTEMPT_LABEL, "0") == number
    ]


def counted(pods: list[Object]) -> Workers:
    """Return how many pods are in which phase. A pod that is scheduled, or pulls its image, is pending."""
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
    """Return whether a pod is bringing its workspace."""
    return any(
        initial["name"] == "workspace" and "running" in (initial.get("state") or {})
        for pod in pods
        for initial in (pod.get("status") or {}).get("initContainerStatuses") or []
    )


def workspaces(pods: list[Object]) -> dict[str, str]:
    """Return pod → what it fetched as its workspace: a commit or a digest."""
    return {
        pod["metadata"]["name"]: str(ended["message"]).strip()
        for pod in pods
        for initial in (pod.get("status") or {}).get("initContainerStatuses") or []
        if initial["name"] == "workspace"
        and (ended := (initial.get("state") or {}).get("terminated") or {}).get("exitCode") == 0
        and ended.get("message")
    }


def hindrance(pods: list[Object], now: datetime) -> tuple[str, datetime | None]:
    """Return why a pod does not run yet, in the kubelet's or the scheduler's words, or "" without a reason.

    An init container that runs is a reason too. Then also return when the text will have another duration.
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
    """Return which init container still runs, and for how long in steps of RUNS_STEP.

    A text with every second would make each look write the status, and each write asks for a look.
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
    """Return which helper containers run on although every pod's trainer has ended with 0, or ""."""
    found: dict[str, list[str]] = {}
    for pod in pods:
        statuses = (pod.get("status") or {}).get("containerStatuses") or []
        states = {each["name"]: each.get("state") or {} for each in statuses}
        if (states.get(names.TRAINER, {}).get("terminated") or {}).get("exitCode") != 0:
            return ""
        for name, state in states.items():
            if "running" in state:
                found.setdefault(name, []).append(pod["metadata"]["name"])
    if not found:
        return ""
    of = [
        f"container {name} of {where[0]}" + (f" and {len(where) - 1} more" if where[1:] else "")
        for name, where in sorted(found.items())
    ]
    return (
        f"every trainer has ended with exit code 0, and the pods wait for {', '.join(of)}: make it a native "
        "sidecar (an init container with restartPolicy: Always)"
    )


def failure(pods: list[Object]) -> str:
    """Return which pod failed first, and how; "" when none did. Others may have failed because of it."""
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
    """Return when a pod's trainer ended, as text that sorts by time; "" where it never ran."""
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        if container["name"] == names.TRAINER:
            ended = (container.get("state") or {}).get("terminated") or {}
            return str(ended.get("finishedAt") or "")
    return ""


def _which(pod: Object, container: Object) -> str:
    """Return the beginning of a text about a container: "" for the trainer and what brings its workspace."""
    name = container["name"]
    if name in (names.TRAINER, "workspace"):
        return ""
    initial = [each["name"] for each in (pod.get("status") or {}).get("initContainerStatuses") or []]
    return f"{'init container' if name in initial else 'container'} {name}: "


def _endless(pod: Object, name: str) -> bool:
    """Return whether a container is a native sidecar: Kubernetes ends it with its pod."""
    initial = (pod.get("spec") or {}).get("initContainers") or []
    return any(each["name"] == name and each.get("restartPolicy") == "Always" for each in initial)


def _exit(container: str, ended: Object) -> str:
    code = f"{ended.get('reason', 'Error')}, exit code {ended['exitCode']}"
    said = str(ended.get("message") or "").strip()
    if container == names.TRAINER:
        return explained(code, said)
    if said and container != "workspace":  # What brings the workspace leaves a text of its own there.
        said = said.splitlines()[-1].strip()
    return f"{code}: {said}" if said else code
