"""The end of a node's pod, as the checks of ranks, cluster and points share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.core.causes import CauseId
from harness.judge.finding import LATE
from harness.judge.logs.stacks import Stack

SAME_MOMENT = 5.0
"""Seconds within which two ends count as simultaneous.

Kubernetes rounds times to whole seconds, and ranks that lose a peer end shortly after it.
"""

State = Literal["succeeded", "failed", "deleted", "running", "waiting", "unknown"]


@dataclass(frozen=True)
class End:
    """The end of one pod. `follows` is set if the end of another rank or a deletion caused it."""

    index: int
    state: State
    ranks: list[int]
    at: float = LATE
    cause: CauseId | None = None
    text: str = ""
    said: str = ""
    """A sentence with the last log line of the pod."""
    exit_code: int | None = None
    follows: bool = False
    in_vain: bool = False
    """Whether the rank waited for a peer that did not take part."""
    advice: str = ""
    """What to do, if that differs from the action of the cause."""
    stack: Stack | None = None
    """The stack of the main thread, if the log shows it."""
    retried: str = ""
    """The last log line in which Pluto's client reports that it could not reach the tracker."""
    clue: CauseId | None = None
    """A cause that the log names, also if something else ended the pod."""
    evidence: tuple[str, ...] = ()
