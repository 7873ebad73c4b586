"""Events come from what a status says, each once, and what goes wrong with them fails nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from events_server import EventsServer
from torchrun_objects import job, pod, queue

from harness.torchrun_controller.api.condition_type import Condition, stamp
from harness.torchrun_controller.api.models import JobStatus, QueueStatus
from harness.torchrun_controller.decide.decisions import Create, Snapshot
from harness.torchrun_controller.decide.events import Event, of_job, of_queue
from harness.torchrun_controller.decide.job import desired
from harness.torchrun_controller.runtime.event_writer import LATEST, SILENCE_SECONDS, Recorder
from harness.torchrun_controller.runtime.metrics import Metrics

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


@pytest.fixture
def server() -> Iterator[EventsServer]:
    found = EventsServer()
    yield found
    found.shutdown()
    found.server_close()


def status(*conditions: tuple[str, Any, str], since: datetime = NOW, **fields: Any) -> JobStatus:
    """Return a status with these conditions: type, status, reason."""
    made = [
        Condition(type=t, status=s, reason=r, message=f"m of {r}", last_transition_time=stamp(since))
        for t, s, r in conditions
    ]
    return JobStatus(conditions=made, **fields)


@pytest.mark.parametrize(
    ("condition", "fields", "reason", "warning"),
    [
        (("QueueReady", "False", "QueueNotFound"), {}, "QueueNotFound", True),
        (("QueueReady", "False", "PriorityClassNotFound"), {}, "PriorityClassNotFound", True),
        (("Admitted", "False", "Pending"), {}, "Queued", False),
        (("Admitted", "True", "Admitted"), {}, "Admitted", False),
        (("Admitted", "False", "Preempted"), {}, "Preempted", False),
        (("PodsReady", "True", "PodsReady"), {"num_nodes": 2}, "Started", False),
        (("WorkspaceReady", "False", "Syncing"), {}, "WorkspaceSyncing", False),
        (("WorkspaceReady", "True", "Synced"), {}, "WorkspaceReady", False),
        (("Suspended", "True", "Suspended"), {}, "Suspended", False),
        (("Suspended", "False", "Resumed"), {}, "Resumed", False),
        (("Complete", "True", "AllRanksSucceeded"), {"phase": "Succeeded"}, "Completed", False),
        (("Failed", "True", "DeadlineExceeded"), {"phase": "TimedOut", "job_id": "j"}, "TimedOut", True),
        (("Failed", "True", "Cancelled"), {"phase": "Cancelled"}, "Cancelled", False),
        (("Failed", "True", "RankFailed"), {"phase": "Failed", "job_id": "j"}, "Failed", True),
        (("Failed", "True", "NoGPUs"), {"phase": "Failed"}, "Refused", True),
        (("Failed", "True", "JobSetDeleted"), {"phase": "Failed"}, "Failed", True),
        (("CleanedUp", "True", "TTLExpired"), {}, "CleanedUp", False),
    ],
)
def test_what_a_user_hears(
    condition: tuple[str, str, str], fields: dict[str, Any], reason: str, warning: bool
) -> None:
    """Contract: each transition that matters to a user is one Event; what went wrong warns, with a cause."""
    [event] = of_job(JobStatus(), status(condition, **fields))
    assert (event.reason, event.warning) == (reason, warning)
    if reason in ("Failed", "Refused"):
        assert event.message.startswith(f"{condition[2]}: ")


@pytest.mark.parametrize(
    "condition",
    [
        ("QueueReady", "True", "QueueFound"),
        ("PodsReady", "False", "PodsNotReady"),
        ("Suspended", "True", "Suspending"),
        ("Suspended", "False", "NotSuspended"),
        ("Complete", "False", "RankFailed"),
    ],
)
def test_what_a_user_need_not_hear(condition: tuple[str, str, str]) -> None:
    """Contract: a step on the way is no Event."""
    assert of_job(JobStatus(), status(condition)) == []


def test_failed_ranks_and_restarts_are_counted() -> None:
    """Contract: each attempt that fails warns once; each restart is told with its number."""
    failed = ("PodsReady", "False", "RankFailed")
    first = status(failed, job_id="j", restarts=0)
    assert [event.reason for event in of_job(status(job_id="j"), first)] == ["RankFailed"]
    assert of_job(first, first) == []
    second = status(failed, job_id="j", restarts=1)
    events = of_job(first, second)
    assert [(event.reason, event.order) for event in events] == [("RankFailed", 2), ("Restarted", 1)]
    again = status(failed, job_id="another", restarts=0)
    [event] = of_job(second, again)
    assert event.name("demo", "u") != events[0].name("demo", "u")


def test_decisions_lead_to_their_events() -> None:
    """Contract: what `desired` writes for a job without its queue, refused, and run is what is told."""
    waiting = desired(job(), Snapshot(), NOW)
    assert [event.reason for event in of_job(JobStatus(), waiting.status)] == ["QueueNotFound"]
    refused = desired(job(numGPUs=3), Snapshot(queue=queue()), NOW)
    assert [event.reason for event in of_job(JobStatus(), refused.status)] == ["Refused"]
    made = desired(job(), Snapshot(queue=queue()), NOW)
    [document] = [action.document for action in made.actions if isinstance(action, Create)]
    document["metadata"]["uid"] = "js"
    document["spec"]["suspend"] = False
    found = job(status=made.status.model_dump(by_alias=True, exclude_none=True))
    running = desired(found, Snapshot(jobset=document, pods=[pod(0, "Running"), pod(1, "Running")]), NOW)
    messages = {event.reason: event.message for event in of_job(made.status, running.status)}
    assert messages == {
        "Admitted": "Kueue admitted all of its pods",
        "Started": "2 nodes × 1 processes: 2/2 ready",
    }


def test_a_queue_that_is_not_ready_warns() -> None:
    """Contract: a queue that is not ready warns with the reason; one that is being made does not."""

    def of(state: Any, reason: str, message: str) -> list[Event]:
        found = Condition(
            type="Ready",
            status=state,
            reason=reason,
            message=message,
            last_transition_time=stamp(NOW),
        )
        return of_queue(QueueStatus(conditions=[found]))

    assert [event.reason for event in of("True", "Ready", "")] == ["Ready"]
    assert of("False", "LocalQueueNotReady", "its LocalQueue is being created") == []
    [event] = of("False", "LocalQueueNotFound", "LocalQueue x does not exist")
    assert (event.reason, event.warning) == ("LocalQueueNotFound", True)
    assert of_queue(QueueStatus()) == []


def recorder(server: EventsServer, folder: Path, seconds: list[float] | None = None) -> Recorder:
    clock = seconds or [0.0]
    return Recorder(server.kube(folder), Metrics(), lambda: clock[0])


def queued(since: datetime) -> list[Event]:
    return of_job(JobStatus(), status(("Admitted", "False", "Pending"), since=since))


def test_same_transition_is_posted_once(server: EventsServer, tmp_path: Path) -> None:
    """Contract: looks at the same status, and a second controller's, post nothing more."""
    one, other = recorder(server, tmp_path), recorder(server, tmp_path)
    for each in (one, other):
        each.record(job(), queued(NOW), NOW)
    asked = server.asked
    for each in (one, other):
        each.record(job(), queued(NOW), NOW)
    assert server.asked == asked  # what it has told itself it need not ask for
    [event] = server.stored.values()
    assert event["count"] == 1
    assert event["involvedObject"]["uid"] == "job-uid"
    assert server.writes == ["create Queued", "create Queued"]  # the other one meets what is there


def test_what_happens_again_counts_up(server: EventsServer, tmp_path: Path) -> None:
    """Contract: the next transition of the same kind is the same Event, with its count and time."""
    found, later = recorder(server, tmp_path), NOW + timedelta(minutes=5)
    found.record(job(), queued(NOW), NOW)
    asked = server.asked
    found.record(job(), queued(later), later)
    assert server.asked == asked + 1  # nothing is read before the update
    recorder(server, tmp_path).record(job(), queued(NOW), later)  # one that has read an old status
    [event] = server.stored.values()
    assert (event["count"], event["firstTimestamp"], event["lastTimestamp"]) == (2, stamp(NOW), stamp(later))


def test_next_controller_tells_what_the_last_one_did_not(server: EventsServer, tmp_path: Path) -> None:
    """Contract: killed between status and Event, nothing is lost; what is long ago is not told any more."""
    found = recorder(server, tmp_path)
    found.record(job(), queued(NOW), NOW + LATEST + timedelta(seconds=1))
    assert server.stored == {}
    found.record(job(), queued(NOW), NOW + LATEST)
    assert len(server.stored) == 1


def test_job_of_the_same_name_has_its_own(server: EventsServer, tmp_path: Path) -> None:
    """Contract: a job that was deleted and made again is another one."""
    found, again = recorder(server, tmp_path), job()
    found.record(job(), queued(NOW), NOW)
    again["metadata"]["uid"] = "another"
    found.record(again, queued(NOW), NOW)
    assert [event["count"] for event in server.stored.values()] == [1, 1]


def test_forbidden_events_fail_nothing(
    server: EventsServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Contract: where the role lacks Events, the look goes on; it is said once, and tried again later."""
    server.refusal = (403, "events is forbidden")
    clock = [0.0]
    found = recorder(server, tmp_path, clock)
    for _ in range(3):
        found.record(job(), queued(NOW), NOW)
    assert server.writes == ["create Queued"]
    assert [record.message for record in caplog.records] == [
        "cannot post Event Queued: HTTP 403: events is forbidden"
    ]
    clock[0], server.refusal = SILENCE_SECONDS, None
    found.record(job(), queued(NOW), NOW)
    assert len(server.stored) == 1


def test_namespace_that_ends_silences_no_other(
    server: EventsServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Contract: an Event is refused in a namespace that is being deleted: that says nothing of the role."""
    server.refusal = (403, 'unable to create: namespace "team" is being terminated')
    found = recorder(server, tmp_path)
    found.record(job(), queued(NOW), NOW)
    server.refusal = None
    found.record(job(), queued(NOW), NOW)
    assert len(server.stored) == 1
    assert caplog.records == []


def test_no_server_fails_nothing(server: EventsServer, tmp_path: Path) -> None:
    """Contract: an API server that is gone costs the Event alone; the next look posts it."""
    found = recorder(server, tmp_path)
    server.refusal = (500, "broken")
    found.record(job(), queued(NOW), NOW)
    server.refusal = None
    found.record(job(), queued(NOW), NOW)
    assert len(server.stored) == 1
