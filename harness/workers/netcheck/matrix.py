"""Classify the failures in the matrix of all pairs as rows, columns, blocks and pairs.

A failing row indicates a problem with the sender's egress, and a failing column a problem with the receiver's
ingress. A failing block indicates a boundary between two groups of ranks. A pattern never includes a pair
that works. All functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace

from .finding import listed

_BOOT_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Matches a boot id, which identifies a node whose name is unknown (surroundings.py)."""


@dataclass(frozen=True, order=True)
class Pattern:
    """A pattern of failing pairs. `kind` is everywhere, isolated, egress, ingress, boundary or pair.

    A pattern covers the pairs from all `senders` to all `receivers`. Unless `one_way` is true, it also covers
    the reverse pairs. `machine` is the node on which all blamed ranks run, or "" if they run on several nodes
    or the job has only one node.
    """

    kind: str
    senders: tuple[int, ...]
    receivers: tuple[int, ...]
    one_way: bool = False
    machine: str = ""

    @property
    def accused(self) -> tuple[int, ...]:
        """The ranks that are to blame for the pattern."""
        if self.kind == "ingress":
            return self.receivers
        if self.kind in ("egress", "isolated"):
            return self.senders
        return tuple(sorted({*self.senders, *self.receivers}))

    @property
    def where(self) -> str:
        """A clause such as " (all on node NAME)" if several blamed ranks share a node, otherwise ""."""
        if not self.machine or len(self.accused) < 2:
            return ""
        return " (all on one node)" if _BOOT_ID.fullmatch(self.machine) else f" (all on node {self.machine})"

    def cells(self) -> set[tuple[int, int]]:
        """Return the pairs that the pattern covers."""
        cells = {(s, r) for s in self.senders for r in self.receivers if s != r}
        return cells if self.one_way else cells | {(r, s) for s, r in cells}

    def __str__(self) -> str:
        arrow = "→" if self.one_way else "↔"
        return f"{listed(self.senders)} {arrow} {listed(self.receivers)}"


def classify(
    bad: Iterable[tuple[int, int]],
    good: Iterable[tuple[int, int]],
    machines: Mapping[int, str] = {},
) -> list[Pattern]:
    """Return patterns that together cover all bad pairs (sender, receiver), but none of the good pairs.

    The result of a pair in neither set is unknown. `machines` maps ranks to node names. If a boundary
    separates one node from at least two others, only the ranks on that node are blamed.
    """
    bad = set(bad)
    measured = bad | set(good)
    if not bad:
        return []
    ranks = {rank for pair in measured for rank in pair}
    if bad == measured and len(ranks) > 2 and len({s for s, _ in bad}) > 1 and len({r for _, r in bad}) > 1:
        all_ranks = tuple(sorted(ranks))
        if {(s, r) for s in ranks for r in ranks if s != r} == bad:
            return [Pattern("everywhere", all_ranks, all_ranks)]
    patterns: list[Pattern] = []
    node_names = {rank: machines.get(rank, "") for rank in ranks}
    isolated = {rank for rank in ranks if _isolated(rank, bad, measured)}
    for rank in sorted(isolated):
        patterns.append(Pattern("isolated", (rank,), _other_ranks(rank, measured)))
    between = {pair for pair in measured if not isolated & {*pair}}
    rest = bad & between
    for kind, side in (("egress", 0), ("ingress", 1)):
        for rank in sorted(ranks - isolated):
            line = {pair for pair in between if pair[side] == rank}
            if len(line) > 1 and line <= bad:
                others = tuple(sorted(pair[1 - side] for pair in line))
                patterns.append(
                    Pattern(kind, (rank,) if side == 0 else others, others if side == 0 else (rank,), True)
                )
    rest -= {cell for pattern in patterns for cell in pattern.cells()}
    blocks = _blocks(rest)
    patterns += blocks
    rest -= {cell for pattern in blocks for cell in pattern.cells()}
    for sender, receiver in sorted(rest):
        two_way = (receiver, sender) in rest
        if not two_way or sender < receiver:
            patterns.append(Pattern("pair", (sender,), (receiver,), not two_way))
    return [_on_one_machine(pattern, node_names) for pattern in _merged(patterns)]


def _merged(patterns: Iterable[Pattern]) -> list[Pattern]:
    """Merge all isolated, all egress and all ingress patterns into one pattern each. Return all patterns."""
    groups: dict[str, list[Pattern]] = {}
    for pattern in patterns:
        # Only these kinds are merged, so all other patterns get a unique key.
        merges = pattern.kind in ("isolated", "egress", "ingress")
        groups.setdefault(pattern.kind if merges else str(pattern), []).append(pattern)
    return [
        replace(
            group[0],
            senders=tuple(sorted({rank for pattern in group for rank in pattern.senders})),
            receivers=tuple(sorted({rank for pattern in group for rank in pattern.receivers})),
        )
        for group in groups.values()
    ]


def _on_one_machine(pattern: Pattern, machines: Mapping[int, str]) -> Pattern:
    """Return the pattern with the node on which all its blamed ranks run, if there is a single one.

    If a boundary separates one node's ranks from ranks on at least two other nodes, only the ranks on that
    one node are blamed.
    """
    if pattern.kind == "boundary":
        for side, far, one_way in (
            (pattern.senders, pattern.receivers, "egress"),
            (pattern.receivers, pattern.senders, "ingress"),
        ):
            near_machines, far_machines = {machines[rank] for rank in side}, {machines[rank] for rank in far}
            if (
                len(near_machines) == 1
                and "" not in near_machines | far_machines
                and len(far_machines - near_machines) > 1
            ):
                kind = one_way if pattern.one_way else "isolated"
                if kind == "isolated":
                    return replace(
                        pattern, kind=kind, senders=side, receivers=far, machine=next(iter(near_machines))
                    )
                return replace(pattern, kind=kind, machine=next(iter(near_machines)))
        return pattern
    near_machines = {machines[rank] for rank in pattern.accused}
    has_several = len(set(machines.values())) > 1
    return replace(
        pattern, machine=next(iter(near_machines)) if len(near_machines) == 1 and has_several else ""
    )


def _isolated(rank: int, bad: Set[tuple[int, int]], measured: Set[tuple[int, int]]) -> bool:
    """Return whether a rank has at least two pairs in each direction, and all of them fail."""
    lines = [{pair for pair in measured if pair[side] == rank} for side in (0, 1)]
    return all(len(line) > 1 and line <= bad for line in lines)


def _other_ranks(rank: int, measured: Set[tuple[int, int]]) -> tuple[int, ...]:
    return tuple(sorted({other for pair in measured if rank in pair for other in pair} - {rank}))


def _blocks(rest: Set[tuple[int, int]]) -> list[Pattern]:
    """Return a pattern for each group of senders that all fail to reach the same group of receivers."""
    receivers_of: dict[int, frozenset[int]] = {s: frozenset(r for x, r in rest if x == s) for s, _ in rest}
    rectangles = {
        (
            tuple(sorted(s for s, receivers in receivers_of.items() if receivers == group)),
            tuple(sorted(group)),
        )
        for group in receivers_of.values()
    }
    blocks = {(s, r) for s, r in rectangles if len(s) > 1 and len(r) > 1}
    return sorted(
        Pattern("boundary", s, r, (r, s) not in blocks) for s, r in blocks if (r, s) not in blocks or s < r
    )
