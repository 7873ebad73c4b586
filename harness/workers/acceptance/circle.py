"""Pair every node with every other by the circle method: each round's pairs share no node.

n nodes need n − 1 rounds where n is even, and n rounds where it is odd: then one node rests in each round.
"""

from __future__ import annotations


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Return the rounds for nodes 0 … count − 1; each pair (a, b) has a < b, and stands in one round."""
    if count < 2:
        return []
    even = count + count % 2
    turning = even - 1
    scheduled = []
    for turn in range(turning):
        pairs = [(turn, turning)]  # the fixed place; of an odd number of nodes nobody sits there
        for distance in range(1, even // 2):
            pairs.append(((turn + distance) % turning, (turn - distance) % turning))
        scheduled.append(sorted((min(pair), max(pair)) for pair in pairs if max(pair) < count))
    return scheduled
