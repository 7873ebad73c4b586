"""Record the outcomes of tests on groups of nodes, and infer the outcomes for other groups.

A search is a generator. In each round, it yields groups and receives their outcomes. No two groups in a round
have a node in common.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from .compat import paired

Outcome = Literal["good", "bad", "unknown"]
Group = tuple[int, ...]
"""Nodes that are tested together, in ascending order."""
T = TypeVar("T")
Search = Generator[list[Group], Sequence[Outcome], T]


class Exhausted(Exception):
    """Raised if the search has used up its test budget."""


@dataclass
class Tested:
    """All outcomes so far. A group is good after `repeats` good tests. It is bad after one bad test."""

    repeats: int
    budget: int
    outcomes: list[tuple[Group, Outcome]] = field(default_factory=list)
    rounds: int = 0
    _good: list[frozenset[int]] = field(default_factory=list)
    _bad: list[frozenset[int]] = field(default_factory=list)
    _good_counts: dict[Group, int] = field(default_factory=dict)

    def known(self, group: Iterable[int]) -> Outcome | None:
        """Return the group's outcome if it follows from earlier tests, otherwise None.

        Every subset of a good group is good, and every group that contains a bad group is bad.
        """
        nodes = frozenset(group)
        good, bad = self.passed(nodes), any(other <= nodes for other in self._bad)
        if good == bad:  # Nothing is known about the group, or its fault is intermittent.
            return None
        return "good" if good else "bad"

    def passed(self, group: Iterable[int]) -> bool:
        """Return whether this group is good, or is part of a larger group that is good."""
        nodes = frozenset(group)
        return any(nodes <= other for other in self._good)

    def failed(self, group: Iterable[int]) -> bool:
        """Return whether this exact group was bad at least once."""
        return frozenset(group) in self._bad

    def bad(self) -> list[Group]:
        """Return the groups that were bad at least once, smallest first."""
        return sorted({tuple(sorted(group)) for group in self._bad}, key=lambda group: (len(group), group))

    def record(self, group: Group, outcome: Outcome) -> None:
        """Record an outcome.

        A group is good after `repeats` good outcomes without a bad outcome in between.
        """
        self.outcomes.append((group, outcome))
        if outcome == "bad":
            self._good_counts[group] = 0
            self._bad.append(frozenset(group))
        elif outcome == "good":
            self._good_counts[group] = self._good_counts.get(group, 0) + 1
            if self._good_counts[group] == self.repeats:
                self._good.append(frozenset(group))

    def ask(self, groups: Sequence[Iterable[int]], *, again: bool = False) -> Search[list[Outcome]]:
        """Test the groups at the same time, and return their outcomes.

        A group whose outcome is already known is not tested, unless `again` is true. A test is repeated once
        if its outcome is unknown. Raises Exhausted if the remaining budget is too small.
        """
        requested = [tuple(sorted(group)) for group in groups]
        if len({node for group in requested for node in group}) != sum(map(len, requested)):
            raise ValueError(f"groups in the same round share a node: {requested}")
        answers: dict[Group, Outcome | None] = {
            group: None if again else self.known(group) for group in requested
        }
        passes, without_result = dict.fromkeys(requested, 0), dict.fromkeys(requested, 0)
        while running := [group for group, answer in answers.items() if answer is None]:
            if len(self.outcomes) + len(running) > self.budget:
                raise Exhausted
            outcomes = yield running
            self.rounds += 1
            for group, outcome in paired(running, outcomes):
                self.record(group, outcome)
                passes[group] += outcome == "good"
                without_result[group] += outcome == "unknown"
                if outcome == "bad" or passes[group] == self.repeats or without_result[group] > 1:
                    answers[group] = outcome
        return [answer for answer in answers.values() if answer is not None]
