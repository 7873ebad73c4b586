"""Say of pairs of nodes which are slow, and whether that is a node or the link between two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

MIN_NODES = 4
"""With fewer nodes a pair has too few others to be compared with."""
MOST_NODES = 16
"""With more, all pairs take too long: acceptance.screen searches in groups."""
SLOW = {"cuda": 0.5, "cpu": 0.02}
"""A pair below this share of what the faster half gives is slow. Pods without GPUs share their cores."""


@dataclass(frozen=True)
class Suspicion:
    """What the slow pairs have in common."""

    nodes: tuple[int, ...] = ()
    """Slow with every other node."""
    links: tuple[tuple[int, int], ...] = ()
    """Slow with each other, while each is fast with others."""
    open: tuple[tuple[int, int], ...] = ()
    """Slow pairs that neither a single node nor single links explain."""
    usual: float = 0.0
    """GB/s of the faster half: its median."""


def suspects(pairs: Mapping[tuple[int, int], float], share: float = SLOW["cuda"]) -> Suspicion:
    """Return what is slow. `pairs`: every pair (a, b), a < b, of MIN_NODES nodes or more → GB/s."""
    nodes = sorted({node for pair in pairs for node in pair})
    ordered = sorted(pairs.values())
    usual = median(ordered[len(ordered) // 2 :])
    slow = {pair for pair, rate in pairs.items() if rate < share * usual}
    of = {node: {pair for pair in pairs if node in pair} for node in nodes}
    guilty = tuple(node for node in nodes if of[node] <= slow)
    left = {pair for pair in slow if not set(pair) & set(guilty)}
    # A link is only a link where each of its two nodes is fast with somebody, by more pairs than it is slow.
    links = tuple(sorted(p for p in left if all(len(of[n] & left) * 2 < len(of[n]) for n in p)))
    return Suspicion(guilty, links, tuple(sorted(left - set(links))), usual)
