"""Which Kubernetes Events a status stands for: a pure function of the status before and after a look.

What a condition says is derived from the condition alone, with its time: a controller that died between its
write and its Event has the next one post it. An Event has a fixed name, so it is never there twice.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

from harness.torchrun_controller.api.conditions import Condition, found, parsed
from harness.torchrun_controller.api.models import JobStatus, QueueStatus

LONGEST = 1024
"""Characters of a message, as the API server takes them."""
ANCIENT = "1970-01-01T00:00:00Z"
OWN_WORK = ("its LocalQueue is being made", "Kueue has not seen its LocalQueue yet")
"""A queue is not ready for a moment: that is no warning."""


@dataclass(frozen=True)
class Event:
    """`order` grows with each transition of the same name. One that is not above the last was posted."""

    reason: str
    message: str
    order: int
    since: datetime | None = None
    """When it came to be. None is now."""
    warning: bool = False
    scope: str = ""
    """Transitions are counted within it, e.g. the JobSet whose restarts are meant."""

    def name(self, object_name: str, uid: str) -> str:
        """Return the fixed name of the Event object."""
        digest = hashlib.sha256(f"{uid}\0{self.reason}\0{self.scope}".encode()).hexdigest()[:16]
        return f"{object_name[:200]}.{digest}"


TOLD: dict[tuple[str, str, str], tuple[str, str]] = {
    ("Admitted", "False", "Preempted"): ("Preempted", ""),
    ("Admitted", "False", ""): ("Queued", ""),
    ("Admitted", "True", ""): ("Admitted", "Kueue admitted all of its pods"),
    ("WorkspaceReady", "False", ""): ("WorkspaceSyncing", ""),
    ("WorkspaceReady", "True", ""): ("WorkspaceReady", ""),
    ("Suspended", "True", "Suspended"): ("Suspended", ""),
    ("Suspended", "False", "Resumed"): ("Resumed", "suspend was taken back: its pods are made anew"),
    ("Complete", "True", ""): ("Completed", ""),
    ("CleanedUp", "True", ""): ("CleanedUp", ""),
}
"""(condition, status, reason or any) → reason and message of the Event; without one, the condition's."""


def of_job(before: JobStatus, status: JobStatus) -> list[Event]:
    """Return the Events of a job's status, oldest first."""
    made = [_of_condition(condition, status) for condition in status.conditions]
    at = sorted((event for event in made if event), key=lambda event: event.since or parsed(ANCIENT))
    return [*at, *_of_attempts(before, status)]


def _of_condition(now: Condition, status: JobStatus) -> Event | None:
    words = _words(now, status)
    if words is None or now.last_transition_time is None:
        return None
    reason, message, warning = words
    since = parsed(now.last_transition_time)
    if reason == "Started":
        # Pods that end are not ready for a moment: an attempt starts once in each admission.
        scope = f"{status.job_id} {status.start_time}"
        return Event(reason, message, status.restarts + 1, since, scope=scope)
    return Event(reason, message[:LONGEST], int(since.timestamp()), since, warning)


def _words(now: Condition, status: JobStatus) -> tuple[str, str, bool] | None:
    """Return reason, message and whether it warns; None for what a user need not hear."""
    match now.type, now.status:
        case "QueueReady", "False" if now.reason != "QueueChecking":
            return now.reason, now.message, True
        case "Accepted", "False":
            return "Rejected", now.message, True
        case "Failed", "True":
            return _end(now, status)
        case "PodsReady", "True":
            size = f"{status.num_nodes} nodes × {status.processes_per_node} processes"
            return "Started", f"{size}: {status.workers_status}", False
    told = TOLD.get((now.type, now.status, now.reason)) or TOLD.get((now.type, now.status, ""))
    return (told[0], told[1] or now.message, False) if told else None


def _end(now: Condition, status: JobStatus) -> tuple[str, str, bool]:
    if status.phase == "TimedOut":
        return "TimedOut", now.message, True
    if status.phase == "Cancelled":
        return "Cancelled", now.message, False
    never_ran = status.job_id is None and status.start_time is None and now.reason != "JobSetDeleted"
    return "Refused" if never_ran else "Failed", f"{now.reason}: {now.message}", True


def _of_attempts(before: JobStatus, status: JobStatus) -> list[Event]:
    """Return what happened to an attempt at this look. Its number is the order, within one JobSet."""
    made, scope = [], status.job_id or ""
    same = before.job_id == status.job_id
    pods, was = found(status.conditions, "PodsReady"), found(before.conditions, "PodsReady")
    if pods is not None and pods.reason == "RankFailed" and pods.message:
        told = same and was is not None and was.reason == "RankFailed" and before.restarts == status.restarts
        if not told:
            message = pods.message[:LONGEST]
            made.append(Event("RankFailed", message, status.restarts + 1, warning=True, scope=scope))
    if same and status.restarts > before.restarts:
        message = f"all ranks start again: restart {status.restarts}"
        made.append(Event("Restarted", message, status.restarts, scope=scope))
    return made


def of_error(reconciled: Condition, now: datetime) -> Event:
    """Return the Event of a look that failed."""
    return Event("ReconcileError", reconciled.message[:LONGEST], int(now.timestamp()), now, warning=True)


def of_queue(status: QueueStatus) -> list[Event]:
    """Return the Events of a queue's status."""
    ready = found(status.conditions, "Ready")
    if ready is None or ready.last_transition_time is None:
        return []
    since = parsed(ready.last_transition_time)
    if ready.status == "True":
        return [Event("Ready", "jobs of this queue can run", int(since.timestamp()), since)]
    if ready.message in OWN_WORK or ready.message.endswith(("is being made", "is being checked")):
        return []
    return [Event(ready.reason, ready.message[:LONGEST], int(since.timestamp()), since, warning=True)]
