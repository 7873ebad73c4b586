"""A change in the cluster during a launch: its time, the changed object, and the client that made it."""

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
"""The entry in `fields` for a change to an object's status."""
SYSTEM_PODS = ("tracker", "dns-pod", "control-plane", "jobset-pod", "kueue-pod")
"""Kinds of pods on which a launch depends, but which do not belong to its job."""


@dataclass(frozen=True)
class Change:
    """One change. `at` is its time, and `until` is the end of an outage, both in seconds since the epoch."""

    at: float
    verb: Verb
    kind: str
    """The object's kind, which is also the name of its evidence file."""
    name: str
    text: str
    ref: str
    fields: tuple[str, ...] = ()
    """The edited fields, as two-part paths such as spec.suspend or metadata.labels."""
    until: float = LATE
    removed: tuple[str, ...] = ()
    """Removed labels and owners, in the form "label NAME" or "owner KIND NAME"."""

    @property
    def line(self) -> str:
        return f"{timestamp(self.at)} {self.text}"


def when(state: ObjectState) -> float:
    return seconds(state.received_at) or 0.0


def title(state: ObjectState) -> str:
    return f"{state.object.get('kind') or 'object'} {state.name}"
