"""Find slow pairs of nodes, and determine whether a node or the link between two nodes is slow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

MIN_NODES = 4
"""Minimum number of nodes. With fewer nodes, there are not enough pairs to compare."""
MOST_NODES = 16
"""Maximum number of nodes for which all pairs are tested. acceptance.screen tests larger clusters."""
SLOW = {"cuda": 0.5, "cpu": 0.02}
"""A pair is slow if its bandwidth is below this fraction of the median of the faster half of all pairs.

The fraction is lower for CPUs, because several pods may share them.
"""


@dataclass(frozen=True)
class Suspicion:
    """The nodes and links that explain the slow pairs."""

    nodes: tuple[int, ...] = ()
    """Nodes that are slow with every other node."""
    links: tuple[tuple[int, int], ...] = ()
    """Pairs of nodes that are slow together, although each node is fast with other nodes."""
    open: tuple[tuple[int, int], ...] = ()
    """Slow pairs that cannot be attributed to a single node or a single link."""
    usual: float = 0.0
    """Median bandwidth of the faster half of the pairs in GB/s."""


def suspects(pairs: Mapping[tuple[int, int], float], share: float = SLOW["cuda"]) -> Suspicion:
    """Return the slow nodes and links.

    `pairs` maps each pair (a, b) with a < b to its bandwidth in GB/s. There must be at least MIN_NODES nodes,
    and all their pairs must be in `pairs`.
    """
    nodes = sorted({node for pair in pairs for node in pair})
    ordered = sorted(pairs.values())
    usual = median(ordered[len(ordered) // 2 :])
    slow = {pair for pair, rate in pairs.items() if rate < share * usual}
    pairs_of = {node: {pair for pair in pairs if node in pair} for node in nodes}
    slow_nodes = tuple(node for node in nodes if pairs_of[node] <= slow)
    remaining = {pair for pair in slow if not set(pair) & set(slow_nodes)}
    # Blame a link only if both of its nodes are fast in most of their pairs. Otherwise, suspect a node.
    links = tuple(
        sorted(p for p in remaining if all(len(pairs_of[n] & remaining) * 2 < len(pairs_of[n]) for n in p))
    )
    return Suspicion(slow_nodes, links, tuple(sorted(remaining - set(links))), usual)
