"""What groups of nodes were tested, with what outcome, and what follows of it without a test.

A search is a generator: it yields rounds of groups that share no node, and is sent one outcome for each.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from .older import paired

Outcome = Literal["good", "bad", "unknown"]
Group = tuple[int, ...]
"""Nodes that are tested together, in order."""
T = TypeVar("T")
Search = Generator[list[Group], Sequence[Outcome], T]


class Exhausted(Exception):
    """The search has used all the tests that it may make."""


@dataclass
class Tested:
    """The outcomes so far. A group counts as good after `repeats` good tests, as bad after one bad test."""

    repeats: int
    budget: int
    outcomes: list[tuple[Group, Outcome]] = field(default_factory=list)
    rounds: int = 0
    _good: list[frozenset[int]] = field(default_factory=list)
    _bad: list[frozenset[int]] = field(default_factory=list)
    _counted: dict[Group, int] = field(default_factory=dict)

    def known(self, group: Iterable[int]) -> Outcome | None:
        """Return what follows: part of a good group is good, and a group with a bad part is bad."""
        nodes = frozenset(group)
        good, bad = self.passed(nodes), any(other <= nodes for other in self._bad)
        if good == bad:  # nothing is known, or a fault comes and goes
            return None
        return "good" if good else "bad"

    def passed(self, group: Iterable[int]) -> bool:
        """Whether exactly this group, or a larger one around it, was good."""
        nodes = frozenset(group)
        return any(nodes <= other for other in self._good)

    def failed(self, group: Iterable[int]) -> bool:
        """Whether exactly this group was bad at least once."""
        return frozenset(group) in self._bad

    def bad(self) -> list[Group]:
        """Return the groups that were bad at least once, the smallest first."""
        return sorted({tuple(sorted(group)) for group in self._bad}, key=lambda group: (len(group), group))

    def record(self, group: Group, outcome: Outcome) -> None:
        """Take one outcome. Good counts once it was seen `repeats` times without a bad one between."""
        self.outcomes.append((group, outcome))
        if outcome == "bad":
            self._counted[group] = 0
            self._bad.append(frozenset(group))
        elif outcome == "good":
            self._counted[group] = self._counted.get(group, 0) + 1
            if self._counted[group] == self.repeats:
                self._good.append(frozenset(group))

    def ask(self, groups: Sequence[Iterable[int]], *, again: bool = False) -> Search[list[Outcome]]:
        """Test the groups at the same time, but for those whose outcome follows; `again` tests all of them.

        An unknown outcome is asked for once more. Raises Exhausted where that takes more tests than are left.
        """
        wanted = [tuple(sorted(group)) for group in groups]
        if len({node for group in wanted for node in group}) != sum(map(len, wanted)):
            raise ValueError(f"groups of one round share a node: {wanted}")
        answers: dict[Group, Outcome | None] = {
            group: None if again else self.known(group) for group in wanted
        }
        good, silent = dict.fromkeys(wanted, 0), dict.fromkeys(wanted, 0)
        while running := [group for group, answer in answers.items() if answer is None]:
            if len(self.outcomes) + len(running) > self.budget:
                raise Exhausted
            said = yield running
            self.rounds += 1
            for group, outcome in paired(running, said):
                self.record(group, outcome)
                good[group] += outcome == "good"
                silent[group] += outcome == "unknown"
                if outcome == "bad" or good[group] == self.repeats or silent[group] > 1:
                    answers[group] = outcome
        return [answer for answer in answers.values() if answer is not None]
