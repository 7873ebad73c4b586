"""Search for bad nodes with few tests, without blaming a good node.

A test runs a group of nodes together. Its outcome is good, bad or unknown. `search` yields rounds of groups,
receives an outcome for each group, and returns a Conclusion. No two groups in a round have a node in common.
The search handles three kinds of faults:

* If a node is bad, each group that contains it fails, always or intermittently (`repeats`).
* If a link between two good nodes is bad, each group that contains both nodes fails.
* If a boundary between two sets of nodes is broken, each group that contains nodes from both sets fails.

Nodes are tested in groups of about √N. Failed groups are halved, and good groups are tested together. Each
remaining node is tested with known-good nodes, which are called its witnesses. A node is accused (reported as
bad) if it fails with two witnesses, does not pass with any node, and also fails with the other suspects. With
up to 16 nodes, all pairs are tested first (round_robin.py).

With `repeats` > 1, each test is run that many times in order to find intermittent faults. A node that fails a
test with probability p is then missed with probability (1 − p) ** repeats. An accusation then requires
`bound` + 1 witnesses. They cannot all be bad, so good nodes are never accused. With repeats = 1, two
witnesses are enough, so two intermittently bad witnesses could cause a wrong accusation.

A node with an intermittent fault may be reported as a bad link. In this case, the fault is still reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from . import round_robin
from .compat import paired
from .group_outcomes import Exhausted, Group, Search, Tested
from .intermittent_faults import challenge
from .search_steps import across, halve, join, meet, pair_up, split

ALL_PAIRS = 16
"""Maximum number of nodes for which all pairs are tested. 16 nodes need 15 rounds."""
HOPELESS = 8
"""The search for a known-good witness stops if the first HOPELESS rounds contain no good pair."""
CANDIDATES = 32
"""Maximum number of nodes that are tested for an intermittent fault."""
BOUND = 32
"""Upper limit for the default of `bound`. It limits the duration, because testing every pair of n suspects
takes about n rounds."""
SAMPLE = 4
"""Maximum number of pairs that are tested to distinguish a broken boundary from a bad link."""
LINKS = 3
"""Maximum number of bad links to search for between two sets of nodes."""
CLASSES = 6
"""Maximum number of node sets. The search looks for faults between every pair of these sets."""


@dataclass(frozen=True)
class Accused:
    """A node that is reported as bad, because it fails with known-good nodes (its witnesses)."""

    node: int
    witnesses: Group
    """The known-good nodes with which this node failed."""
    reason: str


@dataclass(frozen=True)
class Link:
    """Two nodes that fail together and pass with other nodes, so the link between them is bad."""

    a: int
    b: int
    reason: str


@dataclass(frozen=True)
class Boundary:
    """Two sets of nodes that are each good, but fail together, so the connection between them is bad."""

    one: Group
    other: Group
    reason: str


@dataclass(frozen=True)
class Unknown:
    """Nodes for which the search did not reach a verdict, with the reason."""

    nodes: Group
    reason: str


@dataclass(frozen=True)
class Conclusion:
    """The result of a search. Nodes that are in none of its fields have passed."""

    accused: tuple[Accused, ...] = ()
    links: tuple[Link, ...] = ()
    boundaries: tuple[Boundary, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    tests: int = 0
    rounds: int = 0

    @property
    def healthy(self) -> bool:
        """Return whether all nodes passed, and no link or boundary is bad."""
        return not (self.accused or self.links or self.boundaries or self.unknown)

    def explains(self, group: Group) -> bool:
        """Return whether the faults in this conclusion explain why a group of nodes fails."""
        nodes = set(group)
        return (
            any(accused.node in nodes for accused in self.accused)
            or any({link.a, link.b} <= nodes for link in self.links)
            or any(nodes & {*edge.one} and nodes & {*edge.other} for edge in self.boundaries)
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the conclusion as a dictionary for JSON."""
        return asdict(self)


def search(
    nodes: Sequence[int], *, bound: int | None = None, repeats: int = 1, all_pairs: int = ALL_PAIRS
) -> Search[Conclusion]:
    """Search for bad nodes in `nodes`, and return the conclusion. At most `bound` nodes can be bad.

    By default, `bound` is a quarter of the number of nodes, but at most 32. If more than `bound` nodes fail,
    none of them is accused, because individual nodes are then not the cause.
    """
    nodes = tuple(sorted(set(nodes)))
    if len(nodes) < 2:
        return Conclusion(
            unknown=(Unknown(nodes, "a single node has no partner to be tested with"),) if nodes else ()
        )
    bound = max(1, min(len(nodes) // 4, BOUND)) if bound is None else bound
    pairs = len(nodes) * (len(nodes) - 1) // 2 if len(nodes) <= all_pairs else 0
    state = _SearchState(
        nodes, bound, Tested(repeats, repeats * (64 + 16 * len(nodes) + pairs + bound * bound))
    )
    try:
        if pairs:
            yield from state.pair_all()
        yield from state.seek()
        yield from state.pursue()
    except Exhausted:
        state.unknown.append(
            Unknown(nodes, f"the search reached its limit after {len(state.tested.outcomes)} tests")
        )
    return state.conclusion()


class _SearchState:
    """A search for bad nodes in progress: its results so far, and the methods that add to them."""

    def __init__(self, nodes: Group, bound: int, tested: Tested) -> None:
        self.nodes, self.bound, self.tested = nodes, bound, tested
        self.needed = 2 if tested.repeats == 1 else max(2, bound + 1)
        self.accused: list[Accused] = []
        self.links: list[Link] = []
        self.boundaries: list[Boundary] = []
        self.unknown: list[Unknown] = []
        self.unproved: list[Group] = []
        """Sets of good nodes for which it has not been proved that they also pass together with the other
        nodes."""

    def conclusion(self) -> Conclusion:
        """Return the conclusion. If more than `bound` nodes failed, none of them is accused."""
        accused, unknown_sets = tuple(self.accused), list(self.unknown)
        reason = "pass together, but were not proved to pass with the other nodes"
        accused_nodes = {one.node for one in accused}
        unknown_sets += [Unknown(nodes, reason) for nodes in self.unproved if not accused_nodes & {*nodes}]
        if len(accused) > self.bound:
            reason = (
                f"{len(accused)} nodes fail, more than the maximum number of bad nodes ({self.bound}, see "
                "--bound): look for a common cause"
            )
            unknown_sets.append(Unknown(tuple(sorted(one.node for one in accused)), reason))
            accused = ()
        return Conclusion(
            accused,
            tuple(self.links),
            tuple(self.boundaries),
            tuple(unknown_sets),
            len(self.tested.outcomes),
            self.tested.rounds,
        )

    def pair_all(self) -> Search[None]:
        """Test every pair of nodes in rounds. No two pairs in a round have a node in common."""
        for places in round_robin.rounds(len(self.nodes)):
            yield from self.tested.ask([(self.nodes[a], self.nodes[b]) for a, b in places])

    def seek(self) -> Search[None]:
        """Test all nodes, and find the reason for each node that did not pass."""
        blocks, remaining = yield from halve(self.tested, split(self.nodes))
        if not blocks:
            blocks = yield from pair_up(self.tested, remaining, HOPELESS)
            remaining = _without(remaining, blocks)
        if not blocks:
            self.unknown.append(
                Unknown(
                    self.nodes,
                    "no two nodes passed together, so there is no known-good node to test others with",
                )
            )
            return
        classes = yield from join(self.tested, blocks)
        classes, remaining = yield from self._place(classes, remaining)
        while len(remaining) > 1:
            classes_found = yield from pair_up(self.tested, remaining)
            if not classes_found:
                break
            classes_found, remaining = yield from self._place(
                (yield from join(self.tested, classes_found)), _without(remaining, classes_found)
            )
            classes += classes_found
        classes.sort(key=len, reverse=True)
        yield from self._judge(remaining, classes[0])
        for one, other in list(combinations(classes[:CLASSES], 2)):
            yield from self._between(one, other)
        for spare in classes[CLASSES:]:
            self.unknown.append(Unknown(spare, "these nodes pass together, but fail with many others"))

    def _place(self, classes: list[Group], remaining: Sequence[int]) -> Search[tuple[list[Group], list[int]]]:
        """Test the nodes in `remaining` with witnesses from each class, starting with the largest class.

        A class is a set of nodes that pass together. If a node passes with witnesses from a class, it joins
        this class. Return the classes and the remaining nodes.
        """
        remaining, merged = list(remaining), []
        for one in sorted(classes, key=len, reverse=True):
            outcomes = yield from meet(self.tested, remaining, one, self.needed)
            joining = [node for node in remaining if "good" in outcomes[node].values()]
            remaining = [node for node in remaining if node not in joining]
            merged += yield from join(self.tested, [one, *((node,) for node in joining)])
        return merged, remaining

    def _judge(self, suspects: Sequence[int], core: Group) -> Search[None]:
        """Test the suspects with good nodes from `core`.

        Accuse each suspect that fails with enough of these nodes. Report the other suspects as unknown.
        """
        outcomes = yield from meet(self.tested, suspects, core, self.needed)
        unclear: list[int] = []
        for node in suspects:
            witnesses = tuple(sorted(other for other, outcome in outcomes[node].items() if outcome == "bad"))
            if len(witnesses) >= self.needed:
                names = ", ".join(map(str, witnesses))
                self.accused.append(
                    Accused(node, witnesses, f"fails with the good nodes {names}, and passes with no node")
                )
            else:
                unclear.append(node)
        if unclear:
            reason = "passed with no node, but too few known-good nodes gave results to determine the reason"
            self.unknown.append(Unknown(tuple(unclear), reason))

    def _between(self, one: Group, other: Group) -> Search[None]:
        """Determine why two sets of good nodes fail together: because of bad links, or a broken boundary."""
        pairs = list(zip(one, other))[:SAMPLE]
        outcomes = yield from self.tested.ask(pairs)
        bad_pairs = [pair for pair, outcome in paired(pairs, outcomes) if outcome == "bad"]
        if len(bad_pairs) == len(pairs) > 1:
            self.boundaries.append(Boundary(one, other, f"all {len(pairs)} pairs across the boundary fail"))
            return
        before = len(self.links) + len(self.boundaries)
        for _ in range(LINKS):
            rest = tuple(node for node in one if node not in {a for a, _ in bad_pairs})
            if rest and (yield from self.tested.ask([rest + other])) != ["good"]:
                pair = yield from across(self.tested, rest, other)
                if pair is None:
                    break
                bad_pairs.append(pair)
        for a, b in bad_pairs:
            yield from self._link(a, b, one, other)
        if len(self.links) + len(self.boundaries) == before:
            self.unproved.append(other)

    def _link(self, a: int, b: int, one: Group, other: Group) -> Search[None]:
        """Report a broken boundary between `a` and the set `other`, or a bad link between nodes `a` and `b`.

        A link is reported only if both of its nodes pass again with other nodes.
        """
        rest = tuple(node for node in other if node != b)
        if rest and (yield from self.tested.ask([(a, *rest)])) == ["bad"]:
            self.boundaries.append(
                Boundary((a,), other, f"node {a} passes with other nodes, but with none of these")
            )
            return
        spare = [node for node in one if node != a]
        witness = next((node for node in spare if self.tested.passed((b, node))), rest[0] if rest else None)
        partner = next((node for node in spare if node != witness), None)
        if witness is None or partner is None:
            return
        steady = yield from self.tested.ask([(a, partner), (b, witness)], again=True)
        if steady == ["good", "good"]:
            self.links.append(
                Link(
                    min(a, b), max(a, b), "fails, but both ends pass with other nodes, so the nodes are good"
                )
            )

    def pursue(self) -> Search[None]:
        """Find the causes of the remaining failures, such as several bad links or an intermittent fault."""
        unexplained = self._unexplained()
        pair_nodes = [node for group in unexplained if len(group) == 2 for node in group]
        lone = [
            group
            for group in unexplained
            if len(group) == 2 and all(pair_nodes.count(node) == 1 for node in group)
        ]
        for a, b in lone:
            others = tuple(node for node in self.nodes if node not in pair_nodes)
            if (yield from self.tested.ask([(a, b)], again=True)) == ["bad"]:
                yield from self._link(a, b, (a, *others), (b,))
        unexplained = self._unexplained()
        if not unexplained:
            return
        candidates = sorted(
            {node for group in unexplained for node in group if len(group) == len(unexplained[0])}
        )[:CANDIDATES]
        needed = max(2, self.bound + 1)
        failed = yield from challenge(
            self.tested, candidates, [n for n in self.nodes if n not in candidates], needed
        )
        for node, witnesses in failed.items():
            if len(witnesses) >= needed:
                reason = (
                    f"fails intermittently with {len(witnesses)} different nodes, which cannot all be bad"
                )
                self.accused.append(Accused(node, witnesses, reason))
        for group in self._unexplained():
            unsteady = tuple(node for node in group if failed.get(node))
            self.unknown.append(Unknown(unsteady or group, "failed, and no single node or link explains it"))

    def _unexplained(self) -> list[Group]:
        """Return the smallest bad groups that the conclusion so far does not explain."""
        conclusion, groups = self.conclusion(), list[Group]()
        unknown_nodes = {node for unknown in self.unknown for node in unknown.nodes}
        accused = {one.node for one in self.accused}
        for group in self.tested.bad():
            if conclusion.explains(group) or unknown_nodes & {*group} or accused & {*group}:
                continue
            if not any({*smaller} <= {*group} for smaller in groups):
                groups.append(group)
        return groups


def _without(nodes: Sequence[int], groups: Sequence[Group]) -> list[int]:
    grouped = {node for group in groups for node in group}
    return [node for node in nodes if node not in grouped]
