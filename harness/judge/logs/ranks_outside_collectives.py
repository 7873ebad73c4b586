"""Find a rank that did not take part in a collective operation, using the ranks' stacks at SIGTERM.

The ranks that time out report this, but do not name the rank for which they waited. The recorder therefore
records the stack of each rank that receives SIGTERM (harness/workers/recorder/rank_stacks.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.evidence.kubernetes.objects import items, mapping
from harness.evidence.worlds import RankLife
from harness.judge.case import Case
from harness.judge.finding import counted
from harness.judge.logs import stacks
from harness.judge.logs.stacks import Stack

MAX_PLACES = 4
"""Maximum number of ranks whose stacks one sentence describes."""


@dataclass(frozen=True)
class Place:
    """The stack of a rank's main thread at the time when the rank received SIGTERM."""

    index: int
    """The index of the rank's node."""
    rank: int
    stack: Stack
    ref: str


def outside_collectives(case: Case) -> list[Place]:
    """Return each rank that was not in a collective operation when it received SIGTERM, in rank order."""
    places = [place for place in _places(case) if not place.stack.in_collective]
    return sorted(places, key=lambda place: place.rank)


def when_stopped(case: Case) -> list[str]:
    """Return a one-item list that describes the ranks' stacks when the job ran out of time, or [].

    Ranks that were not in a collective operation come first, because the others may have waited for them.
    """
    places = _places(case)
    places.sort(key=lambda place: (place.stack.in_collective, place.rank))
    texts = [f"rank {place.rank} was in {place.stack.place}" for place in places[:MAX_PLACES]]
    if places[MAX_PLACES:]:
        remaining = counted(len(places) - MAX_PLACES, "more rank")
        texts.append(f"processes.jsonl has the stacks of {remaining}")
    return [f"when the job was stopped, {'; '.join(texts)}"] if texts else []


def silent(case: Case) -> Place | None:
    """Return the only rank that can have kept the other ranks waiting, or None if this is not proved.

    For a proof, every other rank must have ended with its own error, or have been in a collective operation.
    With GPUs, the stack proves nothing, because a rank may also wait for a collective operation in its own
    code.
    """
    candidates = outside_collectives(case)
    if len(candidates) != 1:
        return None
    [candidate] = candidates
    waiting = {place.rank for place in _places(case) if place.stack.in_collective}
    failed = {life.rank for lives in case.lives.values() for life in lives if _failed_by_itself(life)}
    if {candidate.rank, *waiting, *failed} != set(case.ranks) or _has_gpus(case, candidate.index):
        return None
    return candidate


def _places(case: Case) -> list[Place]:
    places = []
    for index, lives in sorted(case.lives.items()):
        for rank, (text, ref) in [(life.rank, life.stack) for life in lives if life.stack is not None]:
            stack, _ = stacks.last(list(enumerate(text.splitlines())))
            if stack is not None:
                places.append(Place(index, rank, stack, ref))
    return places


def _failed_by_itself(life: RankLife) -> bool:
    """Return whether the rank exited with an error rather than because of a signal."""
    if any(end.code for end in life.ends):
        return True
    return not life.ends and life.failure is not None and life.failure[0] > 0


def _has_gpus(case: Case, index: int) -> bool:
    """Return whether a node's rank container requests an extended resource, such as GPUs."""
    spec = mapping(case.pods[index].last.object, "spec")
    own = [each for each in items(spec, "containers") if each.get("name") == case.launch.container]
    limits = [name for each in own for name in mapping(each, "resources", "limits")]
    return any("/" in name for name in limits)
