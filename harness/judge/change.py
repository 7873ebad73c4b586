"""One change in the cluster during a launch: its time, its object and its author."""

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
"""The field name of a change to an object's status."""
SYSTEM_PODS = ("tracker", "dns-pod", "control-plane", "jobset-pod", "kueue-pod")
"""Kinds of pods on which a launch depends and that are not its own."""


@dataclass(frozen=True)
class Change:
    """One change. `at` and, for a lasting state, its end `until` are in seconds since the epoch."""

    at: float
    verb: Verb
    kind: str
    """The evidence file of the object."""
    name: str
    text: str
    ref: str
    fields: tuple[str, ...] = ()
    """The edited fields, as dotted paths of two parts: spec.suspend, metadata.labels."""
    until: float = LATE
    removed: tuple[str, ...] = ()
    """Removed labels and owners: "label NAME", "owner KIND NAME"."""

    @property
    def told(self) -> str:
        return f"{timestamp(self.at)} {self.text}"


def when(seen: ObjectState) -> float:
    return seconds(seen.received_at) or 0.0


def title(seen: ObjectState) -> str:
    return f"{seen.object.get('kind') or 'object'} {seen.name}"
