"""How the pod of one node ended: the record that checks of ranks, cluster and points share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.core.causes import CauseId
from harness.judge.finding import LATE
from harness.judge.logs.stacks import Stack

SAME_MOMENT = 5.0
"""Seconds within which two ends count as one moment.

Kubernetes gives whole seconds, and ranks that lose a peer end within moments of it.
"""

State = Literal["succeeded", "failed", "deleted", "running", "waiting", "unknown"]


@dataclass(frozen=True)
class End:
    """The end of one pod. `follows` is set when another rank's end or a deletion caused it."""

    index: int
    state: State
    ranks: list[int]
    at: float = LATE
    cause: CauseId | None = None
    text: str = ""
    said: str = ""
    """A sentence with the last line that it logged."""
    exit_code: int | None = None
    follows: bool = False
    in_vain: bool = False
    """Whether it waited for a peer that did not take part."""
    advice: str = ""
    """What to do, where that differs from the action of the cause."""
    stack: Stack | None = None
    """Where its main thread stood, if the log shows it."""
    retried: str = ""
    """The last line in which its Pluto client says that it could not reach the tracker."""
    clue: CauseId | None = None
    """A cause that its log names, also when something else ended it."""
    evidence: tuple[str, ...] = ()
