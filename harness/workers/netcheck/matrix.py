"""Classify the failures in the matrix of all pairs as rows, columns, blocks and pairs.

A failing row points to the sender's egress, a failing column to the receiver's ingress, and a failing block
to a boundary between two groups of ranks. A pattern never includes a pair that works. All
functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from .finding import listed


@dataclass(frozen=True, order=True)
class Pattern:
    """A pattern of failing pairs. `kind` is everywhere, isolated, egress, ingress, boundary or pair.

    A pattern covers the pairs from all `senders` to all `receivers`. Unless `one_way` is true, it also covers
    the reverse pairs.
    """

    kind: str
    senders: tuple[int, ...]
    receivers: tuple[int, ...]
    one_way: bool = False

    @property
    def accused(self) -> tuple[int, ...]:
        """The ranks that the pattern blames."""
        if self.kind == "ingress":
            return self.receivers
        if self.kind in ("egress", "isolated"):
            return self.senders
        return tuple(sorted({*self.senders, *self.receivers}))

    def cells(self) -> set[tuple[int, int]]:
        """Return the pairs that the pattern covers."""
        there = {(s, r) for s in self.senders for r in self.receivers if s != r}
        return there if self.one_way else there | {(r, s) for s, r in there}

    def __str__(self) -> str:
        arrow = "→" if self.one_way else "↔"
        return f"{listed(self.senders)} {arrow} {listed(self.receivers)}"


def classify(bad: Iterable[tuple[int, int]], good: Iterable[tuple[int, int]]) -> list[Pattern]:
    """Return patterns that together cover all bad pairs (sender, receiver) and no good pair.

    A pair in neither set is unknown.
    """
    bad = set(bad)
    known = bad | set(good)
    if not bad:
        return []
    ranks = {rank for pair in known for rank in pair}
    if bad == known and len(ranks) > 2 and len({s for s, _ in bad}) > 1 and len({r for _, r in bad}) > 1:
        everyone = tuple(sorted(ranks))
        if {(s, r) for s in ranks for r in ranks if s != r} == bad:
            return [Pattern("everywhere", everyone, everyone)]
    found: list[Pattern] = []
    alone = {rank for rank in ranks if _isolated(rank, bad, known)}
    for rank in sorted(alone):
        found.append(Pattern("isolated", (rank,), _others(rank, known)))
    between = {pair for pair in known if not alone & {*pair}}
    rest = bad & between
    for kind, side in (("egress", 0), ("ingress", 1)):
        for rank in sorted(ranks - alone):
            line = {pair for pair in between if pair[side] == rank}
            if len(line) > 1 and line <= bad:
                far = tuple(sorted(pair[1 - side] for pair in line))
                found.append(
                    Pattern(kind, (rank,) if side == 0 else far, far if side == 0 else (rank,), True)
                )
    rest -= {cell for pattern in found for cell in pattern.cells()}
    blocks = _blocks(rest)
    found += blocks
    rest -= {cell for pattern in blocks for cell in pattern.cells()}
    for sender, receiver in sorted(rest):
        both = (receiver, sender) in rest
        if not both or sender < receiver:
            found.append(Pattern("pair", (sender,), (receiver,), not both))
    return found


def _isolated(rank: int, bad: Set[tuple[int, int]], known: Set[tuple[int, int]]) -> bool:
    """Return whether all pairs from and to a rank fail, with at least two other ranks in each direction."""
    lines = [{pair for pair in known if pair[side] == rank} for side in (0, 1)]
    return all(len(line) > 1 and line <= bad for line in lines)


def _others(rank: int, known: Set[tuple[int, int]]) -> tuple[int, ...]:
    return tuple(sorted({other for pair in known if rank in pair for other in pair} - {rank}))


def _blocks(rest: Set[tuple[int, int]]) -> list[Pattern]:
    """Return the groups of two or more senders that fail towards the same group of two or more receivers."""
    towards: dict[int, frozenset[int]] = {s: frozenset(r for x, r in rest if x == s) for s, _ in rest}
    rectangles = {
        (tuple(sorted(s for s, those in towards.items() if those == group)), tuple(sorted(group)))
        for group in towards.values()
    }
    blocks = {(s, r) for s, r in rectangles if len(s) > 1 and len(r) > 1}
    return sorted(
        Pattern("boundary", s, r, (r, s) not in blocks) for s, r in blocks if (r, s) not in blocks or s < r
    )
