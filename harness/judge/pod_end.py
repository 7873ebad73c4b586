"""Describe how a node's pod ended.

The checks of ranks, points and the cluster all use this description.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from harness.core.causes import CauseId
from harness.judge.finding import LATE
from harness.judge.logs.stacks import Stack

SAME_MOMENT = 5.0
"""Maximum number of seconds between two pod terminations that count as simultaneous. Kubernetes truncates
times to whole seconds, and ranks that lose a peer end shortly after the peer."""

State = Literal["succeeded", "failed", "deleted", "running", "waiting", "unknown"]


@dataclass(frozen=True)
class End:
    """The end of one pod.

    `follows` is true if the pod ended because of its deletion or another rank's end.
    """

    index: int
    state: State
    ranks: list[int]
    at: float = LATE
    deletion: float = LATE
    """The resource version of the first state in which the pod was being deleted. It shows the order of
    deletions within the same second."""
    cause: CauseId | None = None
    text: str = ""
    log_quote: str = ""
    """A sentence that quotes the pod's last log line."""
    exit_code: int | None = None
    follows: bool = False
    others_lost_peers: bool = False
    """Whether the pod's log shows one rank's own error and another rank's loss of a peer."""
    peer_absent: bool = False
    """Whether the rank waited for a peer that did not take part in a collective operation."""
    advice: str = ""
    """The action that the user should take, if it differs from the action of the cause in the catalogue."""
    stack: Stack | None = None
    """The main thread's stack, if the log contains it."""
    retried: str = ""
    """The last log line in which the Pluto client reports that it could not reach the tracker."""
    clue: CauseId | None = None
    """A cause that the log suggests, even if another cause ended the pod."""
    unexplained: bool = False
    """Whether the log contains no reason for the failure of the pod's container."""
    detected_late: bool = False
    """Whether `at` is the time at which a controller detected the loss of the pod's node. This can be minutes
    after the loss."""
    by_controller: bool = False
    """Whether `text` explains why one of the job's controllers stopped the pod."""
    evidence: tuple[str, ...] = ()


def first(failures: list[End]) -> End:
    """Return the first failure.

    This is one of the earliest `End`s, preferably one that is not a consequence.
    """
    earliest = min(end.at for end in failures)
    candidates = [end for end in failures if end.at <= earliest + SAME_MOMENT] or failures

    def order(end: End) -> tuple[bool, int, bool, float, float, int]:
        # A rank whose rendezvous failed or timed out may have waited for a rank that failed earlier.
        waited = 2 if end.cause == "rendezvous.timeout" else int((end.cause or "").startswith("rendezvous."))
        # If another rank in the pod lost a peer, the rank's own error may be a consequence of that loss.
        return end.follows, waited, end.others_lost_peers, end.at, end.deletion, end.index

    cause = min(candidates, key=order)
    late_ends = [end for end in failures if end.detected_late]
    return late_ends[0] if late_ends and (cause.follows or cause.unexplained) else cause


def explained(
    cause: End, id_: CauseId, ranks: list[int], text: str, refs: tuple[str, ...], advice: str = ""
) -> End:
    """Return a copy of `cause` with the given values. It is not a consequence of another `End`."""
    return replace(
        cause,
        cause=id_,
        ranks=ranks,
        text=text,
        log_quote="",
        evidence=refs or cause.evidence,
        advice=advice,
        follows=False,
        peer_absent=False,
    )
