"""A launch is over when it has ended, or when it is seen that it never will; passing states are neither."""

from typing import Any

import pytest

from harness.evidence.schema import Observation
from harness.observe import ending
from harness.observe.ending import Ending


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch) -> Ending:
    """Graces of no length: a state that holds at all has lasted."""
    monkeypatch.setattr(ending, "GRACE", dict.fromkeys(ending.GRACE, 0.0))
    return Ending()


def told(
    end: Ending, kind: str, status: dict[str, Any], name: str = "x-0", change: Any = "MODIFIED"
) -> str | None:
    item = {"metadata": {"name": name, "uid": f"{kind}/{name}"}, "status": status}
    end.observe(kind, Observation(received_at="2026-01-01T00:00:00Z", type=change, object=item))
    return end.reason()


def condition(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"containerStatuses": [{"state": {"waiting": {"reason": reason, "message": message}}}]}


@pytest.mark.parametrize(
    "message",
    [
        "LocalQueue no-such-queue doesn't exist",
        "ClusterQueue cq is inactive",
        "request (64) > maximum capacity (4)",
    ],
)
def test_a_job_that_kueue_never_admits(end: Ending, message: str) -> None:
    """The refusal is found whatever other conditions stand beside it, before or after."""
    others = condition("PodsReady", "False", "WaitForStart")
    refused = condition("QuotaReserved", "False", "Inadmissible", message)
    for conditions in ([refused], [refused, others], [others, refused]):
        assert message in (told(end, "workload", {"conditions": conditions}) or "")


def test_a_job_that_waits_for_quota_goes_on(end: Ending) -> None:
    waits = condition("QuotaReserved", "False", "Pending", "insufficient unused quota for cpu")
    assert told(end, "workload", {"conditions": [waits]}) is None


def test_an_eviction(end: Ending) -> None:
    evicted = condition("Evicted", "True", "MaximumExecutionTimeExceeded", "too long")
    assert "too long" in (told(end, "workload", {"conditions": [evicted]}) or "")


@pytest.mark.parametrize(
    "reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerError"]
)
def test_a_container_that_cannot_start(end: Ending, reason: str) -> None:
    assert reason in (told(end, "pod", waiting(reason, "manifest unknown")) or "")


def test_a_container_that_is_being_created_goes_on(end: Ending) -> None:
    assert told(end, "pod", waiting("ContainerCreating")) is None


def test_a_pull_that_failed_once_is_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(Ending(), "pod", waiting("ErrImagePull", "connection reset by peer")) is None


def test_a_pod_that_fits_nowhere(end: Ending) -> None:
    unschedulable = condition("PodScheduled", "False", "Unschedulable", "0/3 nodes")
    assert "0/3 nodes" in (told(end, "pod", {"conditions": [unschedulable]}) or "")


def test_a_finished_jobset_with_its_pods_ended(end: Ending, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ending.GRACE, "pods", 60.0)
    assert told(end, "pod", {"phase": "Running"}) is None
    assert told(end, "jobset", {"terminalState": "Failed"}) is None, "a pod still runs: its log is not whole"
    assert "Failed" in (told(end, "pod", {"phase": "Running"}, change="DELETED") or "")
    assert end.finished()
