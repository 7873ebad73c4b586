"""How a node's pod ended, in the form that the checks of ranks, cluster and points use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.core.causes import CauseId
from harness.judge.finding import LATE
from harness.judge.logs.stacks import Stack

SAME_MOMENT = 5.0
"""Maximum number of seconds between two pod ends that count as simultaneous.

Kubernetes rounds times to whole seconds, and ranks that lose a peer end shortly after it.
"""

State = Literal["succeeded", "failed", "deleted", "running", "waiting", "unknown"]


@dataclass(frozen=True)
class End:
    """How one pod ended. `follows` is set if another rank's end or a deletion of the pod caused it."""

    index: int
    state: State
    ranks: list[int]
    at: float = LATE
    cause: CauseId | None = None
    text: str = ""
    log_quote: str = ""
    """A sentence that quotes the last log line of the pod."""
    exit_code: int | None = None
    follows: bool = False
    in_vain: bool = False
    """Whether the rank waited in vain for a peer that did not take part."""
    advice: str = ""
    """What the user should do, if that differs from the action in the catalogue of causes."""
    stack: Stack | None = None
    """The stack of the main thread, if the log contains it."""
    retried: str = ""
    """The last log line in which Pluto's client reports that it could not reach the tracker."""
    clue: CauseId | None = None
    """A cause that the log suggests, even if another cause ended the pod."""
    evidence: tuple[str, ...] = ()
