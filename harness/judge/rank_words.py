"""The words that agree in number with a list of ranks, for sentences about one rank or several."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from harness.judge.case import Case


@dataclass(frozen=True)
class RankWords:
    """The verbs and pronouns that agree with a list of ranks, such as "was" or "were"."""

    was: str
    present: str
    """The present tense of "be"."""
    has: str
    it: str
    its: str

    def add_s(self, verb: str) -> str:
        """Return a regular verb in the present tense, such as "waits" for one rank or "wait" for several."""
        return f"{verb}s" if self.was == "was" else verb


_ONE = RankWords("was", "is", "has", "it", "its")
_SEVERAL = RankWords("were", "are", "have", "they", "their")


def of(ranks: Collection[int]) -> RankWords:
    """Return the words for a list of ranks as formatted by `case.names`. An empty list counts as one rank."""
    return _ONE if len(set(ranks)) <= 1 else _SEVERAL


def of_node(case: Case, index: int) -> RankWords:
    """Return the words for a node's ranks as formatted by `case.place`."""
    return of(case.ranks_of(index))


def was(case: Case, index: int) -> str:
    """Return "was" for a node with one rank, or "were" for a node with several ranks."""
    return of_node(case, index).was
