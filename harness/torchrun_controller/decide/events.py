"""Derive Kubernetes Events from the status of a job or queue before and after a reconcile.

These functions perform no I/O.

An Event about a condition depends only on the condition and its transition time. Therefore, if a controller
stops between writing a status and posting the Event, the next controller posts the Event. Fixed names prevent
duplicate Events.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from harness.torchrun_controller.api.condition_type import Condition, found, parsed
from harness.torchrun_controller.api.models import JobStatus, QueueStatus
from harness.torchrun_controller.decide.reconcile_state import UNEXPLAINED, WAITS

LONGEST = 1024
"""The API server's limit for the length of an Event message, in characters."""
ANCIENT = "1970-01-01T00:00:00Z"
OWN_WORK = ("its LocalQueue is being created", "Kueue has not seen its LocalQueue yet")
"""Messages about a queue that will become ready soon. They do not cause a warning."""


@dataclass(frozen=True)
class Event:
    """An Event about a state transition. It is posted at most once.

    If the Events of several transitions have the same name, `order` increases with each transition.
    """

    reason: str
    message: str
    order: int
    since: datetime | None = None
    """The time of the transition. None means now."""
    warning: bool = False
    scope: str = ""
    """A part of the Event's name. Each scope has its own sequence of `order` values. For example, if `order`
    counts the restarts of a JobSet, the scope is the JobSet's UID."""
    not_before: timedelta = timedelta(0)
    """The minimum time between the transition and the Event."""

    def name(self, object_name: str, uid: str) -> str:
        """Return the fixed name of the Event object."""
        digest = hashlib.sha256(f"{uid}\0{self.reason}\0{self.scope}".encode()).hexdigest()[:16]
        return f"{object_name[:200]}.{digest}"


EVENTS_BY_CONDITION: dict[tuple[str, str, str], tuple[str, str]] = {
    ("Admitted", "False", "Preempted"): ("Preempted", ""),
    ("Admitted", "False", ""): ("Queued", ""),
    ("Admitted", "True", ""): ("Admitted", "Kueue admitted all of its pods"),
    ("WorkspaceReady", "False", ""): ("WorkspaceSyncing", ""),
    ("WorkspaceReady", "True", ""): ("WorkspaceReady", ""),
    ("Suspended", "True", "Suspended"): ("Suspended", ""),
    ("Suspended", "False", "Resumed"): ("Resumed", "suspend was unset: new pods are created"),
    ("Complete", "True", ""): ("Completed", ""),
    ("CleanedUp", "True", ""): ("CleanedUp", ""),
}
"""Maps a condition's type, status and reason to the reason and message of an Event.

The reason "" matches any reason. If the Event's message is empty, the condition's message is used.
"""


OF_PODS = ("Disrupted", "PodDeleted", "PodsNotStarting", "HelpersRunning", "SidecarFailing")
"""Reasons of a job's PodsReady condition that concern a named pod. For each reason, there is at most one
Event per attempt."""


def of_job(before: JobStatus, status: JobStatus) -> list[Event]:
    """Return the Events for a job's status, oldest first."""
    of_conditions = [_of_condition(condition, status) for condition in status.conditions]
    sorted_events = sorted(filter(None, of_conditions), key=lambda event: event.since or parsed(ANCIENT))
    return [*_of_attempts(before, status), *sorted_events]


def _of_condition(now: Condition, status: JobStatus) -> Event | None:
    words = _words(now, status)
    if words is None or now.last_transition_time is None:
        return None
    reason, message, warning = words
    since = parsed(now.last_transition_time)
    if reason == "Started":
        # The start is reported only once per admission, because pods that terminate are briefly not ready.
        scope = f"{status.job_id} {status.start_time}"
        return Event(reason, message, status.restarts + 1, since, scope=scope)
    if now.type == "PodsReady":
        # The condition's transition time is not used, because the pods may have stopped being ready long
        # before this problem.
        scope = f"{status.job_id} {status.start_time}"
        return Event(reason, message[:LONGEST], status.restarts + 1, warning=warning, scope=scope)
    settle = UNEXPLAINED if message == WAITS else timedelta(0)
    return Event(reason, message[:LONGEST], int(since.timestamp()), since, warning, not_before=settle)


def merged(events: list[Event]) -> Event:
    """Merge the Events of one reconcile into the last Event, whose message then contains all messages."""
    *_, last = events
    if len(events) == 1:
        return last
    message = "; ".join(f"{event.reason}: {event.message}" for event in events)
    return replace(last, message=message[:LONGEST])


def _words(now: Condition, status: JobStatus) -> tuple[str, str, bool] | None:
    """Return the reason and message of a condition's Event, and whether it is a warning. Return None if the
    condition has no Event."""
    match now.type, now.status:
        case "QueueReady", "False" if now.reason != "QueueChecking":
            return now.reason, now.message, True
        case "Accepted", "False":
            return "Rejected", now.message, True
        case "Failed", "True":
            return _end(now, status)
        case "PodsReady" | "Reconciled", "False" if now.reason in (*OF_PODS, "UnknownField"):
            return now.reason, now.message, True
        case "PodsReady", "True":
            size = f"{status.num_nodes} nodes × {status.processes_per_node} processes"
            return "Started", f"{size}: {status.workers_status}", False
    row = EVENTS_BY_CONDITION.get((now.type, now.status, now.reason)) or EVENTS_BY_CONDITION.get(
        (now.type, now.status, "")
    )
    return (row[0], row[1] or now.message, False) if row else None


def _end(now: Condition, status: JobStatus) -> tuple[str, str, bool]:
    if status.phase == "TimedOut":
        return "TimedOut", now.message, True
    if status.phase == "Cancelled":
        return "Cancelled", now.message, False
    never_ran = status.job_id is None and status.start_time is None and now.reason != "JobSetDeleted"
    return "Refused" if never_ran else "Failed", f"{now.reason}: {now.message}", True


def _of_attempts(before: JobStatus, status: JobStatus) -> list[Event]:
    """Return the Events for a failed or restarted attempt.

    Their `order` is the attempt's number in its JobSet.
    """
    events, scope = [], status.job_id or ""
    same_job = before.job_id == status.job_id
    pods, previous = found(status.conditions, "PodsReady"), found(before.conditions, "PodsReady")
    if pods is not None and pods.reason == "RankFailed" and pods.message:
        already_reported = (
            same_job
            and previous is not None
            and previous.reason == "RankFailed"
            and before.restarts == status.restarts
        )
        if not already_reported:
            message = pods.message[:LONGEST]
            events.append(Event("RankFailed", message, status.restarts + 1, warning=True, scope=scope))
    if same_job and status.restarts > before.restarts:
        message = f"all ranks start again (restart {status.restarts})"
        events.append(Event("Restarted", message, status.restarts, scope=scope))
    return events


def of_error(reconciled: Condition, now: datetime) -> Event:
    """Return the Event for a failed reconcile."""
    return Event("ReconcileError", reconciled.message[:LONGEST], int(now.timestamp()), now, warning=True)


def of_queue(status: QueueStatus) -> list[Event]:
    """Return the Events for a queue's status."""
    ready = found(status.conditions, "Ready")
    if ready is None or ready.last_transition_time is None:
        return []
    since = parsed(ready.last_transition_time)
    if ready.status == "True":
        return [Event("Ready", "jobs of this queue can run", int(since.timestamp()), since)]
    if ready.message in OWN_WORK or ready.message.endswith(("is being created", "is being checked")):
        return []
    return [Event(ready.reason, ready.message[:LONGEST], int(since.timestamp()), since, warning=True)]
