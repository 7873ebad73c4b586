"""Pair every node with every other node using the circle method. No two pairs in a round share a node.

An even number n of nodes needs n − 1 rounds. An odd number n needs n rounds, and one node is idle in each.
"""

from __future__ import annotations


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Return the rounds for nodes 0 … count − 1. Each pair (a, b) with a < b is in exactly one round."""
    if count < 2:
        return []
    even = count + count % 2
    turning = even - 1
    scheduled = []
    for turn in range(turning):
        pairs = [(turn, turning)]  # The last position is fixed. If the number of nodes is odd, it is empty.
        for distance in range(1, even // 2):
            pairs.append(((turn + distance) % turning, (turn - distance) % turning))
        scheduled.append(sorted((min(pair), max(pair)) for pair in pairs if max(pair) < count))
    return scheduled
