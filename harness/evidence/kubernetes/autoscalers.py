"""Read Events in which an autoscaler reports whether it adds a node for a pod that fits no existing node.

The Events are those of cluster-autoscaler 1.34 and Karpenter 1.8.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from harness.evidence.kubernetes.objects import mapping
from harness.evidence.kubernetes.refusals import occurred

_KARPENTER = "karpenter"
_OUTCOMES: dict[str, Literal["adding", "failed", "refused"]] = {
    "TriggeredScaleUp": "adding",
    "Nominated": "adding",
    "FailedScaleUp": "failed",
    "NotTriggerScaleUp": "refused",
}
"""Maps the reason of an autoscaler's Event about a pod to the outcome that the Event reports.

Karpenter also uses the scheduler's reason FailedScheduling.
"""
_LIMITS = (
    "max node group size reached",
    "max cluster",
    "max total nodes",
    "exceed limits for nodepool",
    "would exceed limits",
    "limits exceeded",
)
_NO_CAPACITY = ("out of resources", "out of stock", "InsufficientInstanceCapacity", "UnfulfillableCapacity")
_IN_BACKOFF = "in backoff after failed scale-up"
_QUOTA = ("quota", "QUOTA_EXCEEDED", "VcpuLimitExceeded", "InstanceLimitExceeded")


@dataclass(frozen=True)
class Report:
    """An autoscaler's report about a pod. `at` is its time in seconds since the epoch, or 0.0 if unknown."""

    outcome: Literal["adding", "failed", "refused"]
    autoscaler: str
    message: str
    at: float

    @property
    def text(self) -> str:
        """Return a clause that quotes the report."""
        verbs = {"adding": "is adding", "failed": "could not add", "refused": "did not add"}
        return f"{self.autoscaler} {verbs[self.outcome]} a node for it: {self.message.rstrip('.')}"

    @property
    def advice(self) -> str:
        """Return advice on how to obtain a node, or "" if the message does not suggest any."""
        if self.outcome == "adding":
            return "raise --wait: a new node with GPUs can take more than ten minutes"
        if any(part in self.message for part in _LIMITS):
            return (
                "raise the maximum size of the node group (or the limits of the NodePool), or wait until "
                "other jobs release its nodes"
            )
        if any(part in self.message for part in _NO_CAPACITY):
            return (
                "use another zone, machine type or reservation: the cloud has no such machine at the moment"
            )
        if self.outcome == "failed" and any(part in self.message for part in _QUOTA):
            return "raise the cloud account's quota for this type of machine"
        if _IN_BACKOFF in self.message:
            return "check the status of the node group or NodeClaim to see why the last scale-up failed"
        return ""


def report(event: object) -> Report | None:
    """Return the autoscaler's report in an Event about a pod, or None if there is none."""
    item = mapping(event)
    reason, component = str(item.get("reason")), _component(item)
    outcome = _OUTCOMES.get(reason)
    if reason == "FailedScheduling" and _KARPENTER in component:
        outcome = "refused"
    if outcome is None or mapping(item, "involvedObject").get("kind") != "Pod":
        return None
    name = "Karpenter" if _KARPENTER in component or reason == "Nominated" else "the cluster autoscaler"
    return Report(outcome, name, str(item.get("message") or "no message"), occurred(item))


def _component(event: dict[str, Any]) -> str:
    return str(event.get("reportingComponent") or mapping(event, "source").get("component") or "")


def adds_node(events: Iterable[object]) -> bool:
    """Return whether, according to the newest report in a pod's Events, an autoscaler is adding a node."""
    reports = [each for event in events if (each := report(event)) is not None]
    newest = max(reports, key=lambda each: each.at, default=None)
    return newest is not None and newest.outcome == "adding"
