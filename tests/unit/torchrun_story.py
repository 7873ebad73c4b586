"""A job whose status goes from one reconcile to the next, without a cluster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from torchrun_objects import job, pod, queue

from harness.torchrun_controller.api.condition_type import found
from harness.torchrun_controller.api.models import JobStatus
from harness.torchrun_controller.decide.decisions import Create, Decision, Snapshot
from harness.torchrun_controller.decide.events import of_job
from harness.torchrun_controller.decide.job import desired

Object = dict[str, Any]
NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
RUNNING = [pod(0, "Running"), pod(1, "Running")]


class Story:
    """A job whose status goes from one reconcile to the next, ten seconds apart."""

    def __init__(self, **spec: Any) -> None:
        self.job, self.now = job(**spec), NOW
        self.reasons: list[str] = []
        """The reasons of all Events, each once."""
        self._names: set[tuple[str, int]] = set()

    def created(self) -> Story:
        """Let the controller create the JobSet."""
        assert any(isinstance(action, Create) for action in self.look().actions)
        return self

    def look(self, **seen: Any) -> Decision:
        """Reconcile by what is seen, and keep the status."""
        self.now += timedelta(seconds=10)
        before = JobStatus.model_validate(self.job["status"])
        decision = desired(self.job, Snapshot(**{"queue": queue(), **seen}), self.now)
        for event in of_job(before, decision.status):
            if (event.name("demo", "u"), event.order) not in self._names:
                self._names.add((event.name("demo", "u"), event.order))
                self.reasons.append(event.reason)
        self.job["status"] = decision.status.model_dump(by_alias=True, exclude_none=True, mode="json")
        return decision

    def edit(self, **spec: Any) -> None:
        self.job["spec"].update(spec)

    def condition(self, kind: str) -> tuple[str, str]:
        status = JobStatus.model_validate(self.job["status"])
        one = found(status.conditions, kind)
        assert one is not None, status
        return one.status, one.reason

    @property
    def status(self) -> Object:
        return dict(self.job["status"])


def workload(**conditions: tuple[str, str, str]) -> Object:
    """Return a Workload with conditions of these types: status, reason and message."""
    return {
        "metadata": {"name": "jobset-demo"},
        "status": {
            "conditions": [
                {"type": kind, "status": status, "reason": reason, "message": message}
                for kind, (status, reason, message) in conditions.items()
            ]
        },
    }
