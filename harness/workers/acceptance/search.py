"""Search for bad nodes in few tests, and accuse none that is good.

A test runs a group of nodes together, and is good, bad or unknown. `search` yields rounds of groups that
share no node, is sent an outcome for each group, and returns a Conclusion. What it reckons with:

* a bad node spoils each group that it is in, always or at times (`repeats`);
* a bad link spoils each group with both of its ends: each node is good, and the link is named;
* a broken boundary spoils each group with nodes of both sides: each side is good, the boundary is named.

Nodes are screened in groups of about √N. What failed is halved, what passed is tested together. What is left
meets known-good witnesses. A node is accused when it fails with two of them, passes with nobody, and fails
with the other suspects as well. Up to 16 nodes, all pairs are tested first (circle.py).

Where faults come and go, `repeats` tests stand for one. Of a node that fails a test with the probability p,
the screening then misses (1 − p) ** repeats, and accusing takes `bound` + 1 witnesses: so many cannot all be
bad, and no good node is accused. With repeats = 1, two witnesses that are bad at times could do it. A node
that is bad at times may be taken for a bad link; it is not passed over then.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from . import circle
from .conclusion import Accused, Boundary, Conclusion, Link, Unknown
from .halving import across, halve, join, meet, pair_up, split
from .older import paired
from .pursuit import challenge
from .tested import Exhausted, Group, Search, Tested

ALL_PAIRS = 16
"""Nodes up to which all pairs are tested: 15 rounds."""
HOPELESS = 8
"""Rounds of pairs without one good pair, after which there is no witness to be found."""
CANDIDATES = 32
"""Nodes that are tested for a fault that comes and goes."""
BOUND = 32
"""The most nodes that may be bad, unless told: the suspects are paired with each other, in so many rounds."""
SAMPLE = 4
"""Pairs that tell a broken boundary from a bad link."""
LINKS = 3
"""Bad links between two sets of nodes that are sought."""
CLASSES = 6
"""Sets of nodes between which faults are sought."""


def search(
    nodes: Sequence[int], *, bound: int | None = None, repeats: int = 1, all_pairs: int = ALL_PAIRS
) -> Search[Conclusion]:
    """Search among `nodes`, of which at most `bound` are bad (unless told, a quarter, and not over 32).

    With more than `bound` nodes that fail nobody is accused: that is no fault of single nodes.
    """
    nodes = tuple(sorted(set(nodes)))
    if len(nodes) < 2:
        return Conclusion(
            unknown=(Unknown(nodes, "a node alone has nobody to be tested with"),) if nodes else ()
        )
    bound = max(1, min(len(nodes) // 4, BOUND)) if bound is None else bound
    pairs = len(nodes) * (len(nodes) - 1) // 2 if len(nodes) <= all_pairs else 0
    found = _Found(nodes, bound, Tested(repeats, repeats * (64 + 16 * len(nodes) + pairs + bound * bound)))
    try:
        if pairs:
            yield from found.pair_all()
        yield from found.seek()
        yield from found.pursue()
    except Exhausted:
        found.unknown.append(Unknown(nodes, f"the search stopped after {len(found.tested.outcomes)} tests"))
    return found.conclusion()


class _Found:
    """What a search has found so far."""

    def __init__(self, nodes: Group, bound: int, tested: Tested) -> None:
        self.nodes, self.bound, self.tested = nodes, bound, tested
        self.needed = 2 if tested.repeats == 1 else max(2, bound + 1)
        self.accused: list[Accused] = []
        self.links: list[Link] = []
        self.boundaries: list[Boundary] = []
        self.unknown: list[Unknown] = []
        self.unproved: list[Group] = []
        """Sets that are good, and were not proved to be good with the others."""

    def conclusion(self) -> Conclusion:
        """Return all of it. Where more nodes failed than may be bad, none of them is accused."""
        accused, unknown = tuple(self.accused), list(self.unknown)
        reason = "pass among themselves, and were not proved to pass with the others"
        spoiled = {one.node for one in accused}
        unknown += [Unknown(nodes, reason) for nodes in self.unproved if not spoiled & {*nodes}]
        if len(accused) > self.bound:
            reason = f"{len(accused)} nodes fail, and {self.bound} may be bad: look for what they share"
            unknown.append(Unknown(tuple(sorted(one.node for one in accused)), reason))
            accused = ()
        return Conclusion(
            accused,
            tuple(self.links),
            tuple(self.boundaries),
            tuple(unknown),
            len(self.tested.outcomes),
            self.tested.rounds,
        )

    def pair_all(self) -> Search[None]:
        """Test each node with each other one."""
        for places in circle.rounds(len(self.nodes)):
            yield from self.tested.ask([(self.nodes[a], self.nodes[b]) for a, b in places])

    def seek(self) -> Search[None]:
        """Screen all nodes, and say of each that did not pass why."""
        blocks, left = yield from halve(self.tested, split(self.nodes))
        if not blocks:
            blocks = yield from pair_up(self.tested, left, HOPELESS)
            left = _without(left, blocks)
        if not blocks:
            self.unknown.append(
                Unknown(self.nodes, "no two nodes passed together: there is no known-good witness")
            )
            return
        classes = yield from join(self.tested, blocks)
        classes, left = yield from self._place(classes, left)
        while len(left) > 1:
            more = yield from pair_up(self.tested, left)
            if not more:
                break
            more, left = yield from self._place((yield from join(self.tested, more)), _without(left, more))
            classes += more
        classes.sort(key=len, reverse=True)
        yield from self._judge(left, classes[0])
        for one, other in list(combinations(classes[:CLASSES], 2)):
            yield from self._between(one, other)
        for spare in classes[CLASSES:]:
            self.unknown.append(Unknown(spare, "these nodes pass together, and fail with many others"))

    def _place(self, classes: list[Group], left: Sequence[int]) -> Search[tuple[list[Group], list[int]]]:
        """Let nodes meet witnesses of each class, the largest first. Return the classes and who is left."""
        left, placed = list(left), []
        for one in sorted(classes, key=len, reverse=True):
            met = yield from meet(self.tested, left, one, self.needed)
            joining = [node for node in left if "good" in met[node].values()]
            left = [node for node in left if node not in joining]
            placed += yield from join(self.tested, [one, *((node,) for node in joining)])
        return placed, left

    def _judge(self, suspects: Sequence[int], core: Group) -> Search[None]:
        """Accuse the suspects that failed with enough of the good nodes, and with each other."""
        met = yield from meet(self.tested, suspects, core, self.needed)
        silent: list[int] = []
        for node in suspects:
            witnesses = tuple(sorted(other for other, outcome in met[node].items() if outcome == "bad"))
            if len(witnesses) >= self.needed:
                names = ", ".join(map(str, witnesses))
                self.accused.append(
                    Accused(node, witnesses, f"fails with the good nodes {names}, and passes with none")
                )
            else:
                silent.append(node)
        if silent:
            reason = "passed with nobody, and too few known-good nodes answered to tell why"
            self.unknown.append(Unknown(tuple(silent), reason))

    def _between(self, one: Group, other: Group) -> Search[None]:
        """Name what is between two sets that are each good: a bad link, or a broken boundary."""
        pairs = list(zip(one, other))[:SAMPLE]
        outcomes = yield from self.tested.ask(pairs)
        bad = [pair for pair, outcome in paired(pairs, outcomes) if outcome == "bad"]
        if len(bad) == len(pairs) > 1:
            self.boundaries.append(Boundary(one, other, f"{len(bad)} of {len(bad)} pairs across it fail"))
            return
        before = len(self.links) + len(self.boundaries)
        for _ in range(LINKS):
            rest = tuple(node for node in one if node not in {a for a, _ in bad})
            if rest and (yield from self.tested.ask([rest + other])) != ["good"]:
                pair = yield from across(self.tested, rest, other)
                if pair is None:
                    break
                bad.append(pair)
        for a, b in bad:
            yield from self._link(a, b, one, other)
        if len(self.links) + len(self.boundaries) == before:
            self.unproved.append(other)

    def _link(self, a: int, b: int, one: Group, other: Group) -> Search[None]:
        """Name a link, where both of its ends pass with others once more."""
        rest = tuple(node for node in other if node != b)
        if rest and (yield from self.tested.ask([(a, *rest)])) == ["bad"]:
            self.boundaries.append(
                Boundary((a,), other, f"node {a} passes with others, and with none of these")
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
                Link(min(a, b), max(a, b), "fails, and both ends pass with others: the link, not the node")
            )

    def pursue(self) -> Search[None]:
        """Go after failures that nothing explains yet: several bad links, or a fault that comes and goes."""
        open_ = self._unexplained()
        ends = [node for group in open_ if len(group) == 2 for node in group]
        lone = [group for group in open_ if len(group) == 2 and all(ends.count(node) == 1 for node in group)]
        for a, b in lone:
            good = tuple(node for node in self.nodes if node not in ends)
            if (yield from self.tested.ask([(a, b)], again=True)) == ["bad"]:
                yield from self._link(a, b, (a, *good), (b,))
        open_ = self._unexplained()
        if not open_:
            return
        candidates = sorted({node for group in open_ for node in group if len(group) == len(open_[0])})[
            :CANDIDATES
        ]
        needed = max(2, self.bound + 1)
        failed = yield from challenge(
            self.tested, candidates, [n for n in self.nodes if n not in candidates], needed
        )
        for node, witnesses in failed.items():
            if len(witnesses) >= needed:
                reason = f"fails at times, with {len(witnesses)} different nodes: more than may be bad"
                self.accused.append(Accused(node, witnesses, reason))
        for group in self._unexplained():
            unsteady = tuple(node for node in group if failed.get(node))
            self.unknown.append(Unknown(unsteady or group, "failed, and no single node or link explains it"))

    def _unexplained(self) -> list[Group]:
        """Return the groups that were bad for no reason found, without those around a smaller one."""
        known, open_ = self.conclusion(), list[Group]()
        named = {node for unknown in self.unknown for node in unknown.nodes}
        accused = {one.node for one in self.accused}
        for group in self.tested.bad():
            if known.explains(group) or named & {*group} or accused & {*group}:
                continue
            if not any({*smaller} <= {*group} for smaller in open_):
                open_.append(group)
        return open_


def _without(nodes: Sequence[int], groups: Sequence[Group]) -> list[int]:
    placed = {node for group in groups for node in group}
    return [node for node in nodes if node not in placed]
