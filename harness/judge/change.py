"""One change in the cluster under a launch: when, of what, and by whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.core.clock import seconds, timestamp
from harness.evidence.kubernetes.objects import ObjectState
from harness.judge.finding import LATE

Verb = Literal[
    "created", "edited", "deleted", "restarted", "rebooted", "kubelet", "not ready", "away", "clock"
]
STATUS = "status"
"""The field of a change of an object's status."""
SYSTEM_PODS = ("tracker", "dns-pod", "control-plane", "jobset-pod", "kueue-pod")
"""Kinds of the pods that serve the launch."""


@dataclass(frozen=True)
class Change:
    """One change. Times are in seconds since the epoch, `until` for what lasted."""

    at: float
    verb: Verb
    kind: str
    """The evidence file of the object."""
    name: str
    text: str
    ref: str
    fields: tuple[str, ...] = ()
    """What was edited, as dotted paths of two parts: spec.suspend, metadata.labels."""
    until: float = LATE
    removed: tuple[str, ...] = ()
    """Labels and owners that were taken away: "label NAME", "owner KIND NAME"."""

    @property
    def told(self) -> str:
        return f"{timestamp(self.at)} {self.text}"


def when(seen: ObjectState) -> float:
    return seconds(seen.received_at) or 0.0


def title(seen: ObjectState) -> str:
    return f"{seen.object.get('kind') or 'object'} {seen.name}"
