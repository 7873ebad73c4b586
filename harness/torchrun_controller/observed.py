"""What a cluster has of a job or a queue, and what to do about it, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from harness.core.kubernetes import Object, condition
from harness.torchrun_controller import names
from harness.torchrun_controller.models import JobStatus, QueueStatus, Workers


@dataclass(frozen=True)
class Create:
    """Make an object where there is none of its name."""

    document: Object


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


Action = Create | Delete | Finalizers


@dataclass(frozen=True)
class Decision:
    """What the status is to say, then what is to be done, and when to look again without an event."""

    status: JobStatus
    actions: list[Action] = field(default_factory=list)
    wake: datetime | None = None


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
    priority_classes: frozenset[str] | None = None
    """None where the controller may not read them."""


@dataclass(frozen=True)
class SeenQueue:
    local_queue: Object | None = None
    resources: dict[tuple[str, str], Object] = field(default_factory=dict)
    """(kind, name) → object, of the queue's resource templates."""
    kai_queue: Object | None = None


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


def hindrance(pods: list[Object]) -> str:
    """Return why a pod does not run yet, in the kubelet's or the scheduler's words; "" without a reason."""
    for pod in pods:
        status = pod.get("status") or {}
        for container in [
            *(status.get("initContainerStatuses") or []),
            *(status.get("containerStatuses") or []),
        ]:
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                return f"{pod['metadata']['name']}: {waiting['reason']}: {waiting.get('message', '')}".rstrip(
                    ": "
                )
        scheduled = condition(pod, "PodScheduled")
        if scheduled.get("status") == "False":
            return f"{pod['metadata']['name']}: {scheduled.get('reason')}: {scheduled.get('message', '')}"
    return ""


def failure(pods: list[Object]) -> str:
    """Return which pod failed, and how; "" when none did."""
    for pod in pods:
        status, name = pod.get("status") or {}, pod["metadata"]["name"]
        if status.get("phase") != "Failed":
            continue
        for kind, awaited in (("initContainerStatuses", "workspace"), ("containerStatuses", names.TRAINER)):
            for container in status.get(kind) or []:
                ended = (container.get("state") or {}).get("terminated") or {}
                if container["name"] == awaited and ended.get("exitCode"):
                    return f"{name}: {_exit(awaited, ended)}"
        return f"{name}: {status.get('reason', 'Failed')}: {status.get('message', '')}".rstrip(": ")
    return ""


def _exit(container: str, ended: Object) -> str:
    code = f"{ended.get('reason', 'Error')}, exit code {ended['exitCode']}"
    # What brings the workspace leaves its last lines there; the trainer's are in its log.
    said = str(ended.get("message") or "").strip() if container == "workspace" else ""
    return f"{code}: {said}" if said else code
