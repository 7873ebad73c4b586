"""A cluster with known faults that answers a search: what each group of nodes would give."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from harness.workers.acceptance.group_outcomes import Group, Outcome
from harness.workers.acceptance.search import Conclusion


@dataclass
class Cluster:
    """Nodes with faults. `bad` maps a node to the probability that it spoils a test."""

    bad: dict[int, float] = field(default_factory=dict)
    links: frozenset[frozenset[int]] = frozenset()
    sides: tuple[frozenset[int], ...] = ()
    """Sets of nodes between which nothing passes. A node in none of them passes with all."""
    silent: frozenset[int] = frozenset()
    """Nodes whose groups give no outcome."""
    seed: int = 0
    asked: list[list[Group]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def outcome(self, group: Group) -> Outcome:
        """Return what a test of the group gives."""
        nodes = set(group)
        if nodes & self.silent:
            return "unknown"
        spoiled = [self._random.random() < chance for node, chance in self.bad.items() if node in nodes]
        cut = sum(bool(nodes & side) for side in self.sides) > 1
        return "bad" if any(spoiled) or cut or any(link <= nodes for link in self.links) else "good"

    def run(self, search: Generator[list[Group], Sequence[Outcome], Conclusion]) -> Conclusion:
        """Answer the search until it ends; each round's groups are of two nodes or more, and share none."""
        try:
            groups = next(search)
            while True:
                nodes = [node for group in groups for node in group]
                assert groups
                assert len(nodes) == len(set(nodes))
                assert min(map(len, groups)) > 1
                self.asked.append(groups)
                groups = search.send([self.outcome(group) for group in groups])
        except StopIteration as end:
            concluded: Conclusion = end.value
        return concluded
