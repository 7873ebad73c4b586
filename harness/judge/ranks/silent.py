"""Find a rank that did not take part in a collective operation, from where each rank was at its end.

The ranks that waited in vain report a timeout, which does not name the rank that they waited for. The
recorder adds where each other rank was when it got SIGTERM (harness/workers/outside_stack.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from harness.evidence.kubernetes.objects import items, mapping
from harness.evidence.worlds import RankLife
from harness.judge.case import Case
from harness.judge.end import End
from harness.judge.logs import stacks
from harness.judge.logs.stacks import Stack


@dataclass(frozen=True)
class Place:
    """Where a rank was when it got SIGTERM."""

    end: End
    """How the rank's pod ended."""
    rank: int
    stack: Stack
    ref: str


def outside_collectives(case: Case, ends: Collection[End]) -> list[Place]:
    """Return each rank that was in no collective operation when it got SIGTERM, in rank order."""
    places = [place for place, _ in _places(case, ends) if not place.stack.in_collective]
    return sorted(places, key=lambda place: place.rank)


def silent(case: Case, ends: Collection[End]) -> Place | None:
    """Return the only rank that the others can have waited for in vain, or None if this is not proved.

    Every other rank must have ended with an error of its own, or have been in a collective operation. With
    GPUs, a line of the rank's own code can also wait for a collective operation, so it proves nothing.
    """
    if not any(end.in_vain for end in ends):
        return None
    candidates = outside_collectives(case, ends)
    if len(candidates) != 1:
        return None
    [candidate] = candidates
    waiting = {place.rank for place, _ in _places(case, ends) if place.stack.in_collective}
    failed = {life.rank for life in _lives(case, ends) if _failed_by_itself(life)}
    if {candidate.rank, *waiting, *failed} != set(case.ranks) or _has_gpus(case, candidate.end.index):
        return None
    return candidate


def _lives(case: Case, ends: Collection[End]) -> Iterator[RankLife]:
    for end in ends:
        yield from case.lives.get(end.index, ())


def _places(case: Case, ends: Collection[End]) -> Iterator[tuple[Place, RankLife]]:
    for end in ends:
        for life in case.lives.get(end.index, ()):
            if life.stack is None:
                continue
            text, ref = life.stack
            stack, _ = stacks.last(list(enumerate(text.splitlines())))
            if stack is not None:
                yield Place(end, life.rank, stack, ref), life


def _failed_by_itself(life: RankLife) -> bool:
    """Return whether the rank ended with an error, and not because of a signal."""
    if any(end.code for end in life.ends):
        return True
    return not life.ends and life.failure is not None and life.failure[0] > 0


def _has_gpus(case: Case, index: int) -> bool:
    """Return whether the container of a node's ranks requests an extended resource, such as GPUs."""
    spec = mapping(case.pods[index].last.object, "spec")
    own = [each for each in items(spec, "containers") if each.get("name") == case.launch.container]
    limits = [name for each in own for name in mapping(each, "resources", "limits")]
    return any("/" in name for name in limits)
