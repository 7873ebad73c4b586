"""The Events about a node's pod, in the order in which they occurred."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.clock import seconds
from harness.evidence.kubernetes.objects import ObjectState
from harness.evidence.kubernetes.refusals import occurred
from harness.judge.case import Case


@dataclass(frozen=True)
class PodEvent:
    """An Event about a pod. `at` is the time of its last occurrence, in seconds since the epoch."""

    state: ObjectState
    at: float

    @property
    def reason(self) -> str:
        return str(self.state.object.get("reason") or "")

    @property
    def message(self) -> str:
        return str(self.state.object.get("message") or "no message")

    @property
    def text(self) -> str:
        return f"{self.reason}: {self.message}"

    @property
    def is_warning(self) -> bool:
        return self.state.object.get("type") == "Warning"


def of_pod(case: Case, index: int) -> list[PodEvent]:
    """Return the Events about a node's pod before the harness stopped waiting, oldest first.

    Each recorded state of a recurring Event is a separate item. `at` is the time at which the harness
    received the state, because the nodes' clocks can differ. For an attached job, `at` is the Event's own
    timestamp.
    """
    uid, limit = case.pods[index].last.uid, case.stopped_at or float("inf")
    events = []
    for state in case.events.get(uid, []):
        received_at = seconds(state.received_at) or 0.0
        if received_at > limit:
            continue
        at = (occurred(state.object) or received_at) if case.launch.attached else received_at
        events.append(PodEvent(state, at))
    return sorted(events, key=lambda event: event.at)
