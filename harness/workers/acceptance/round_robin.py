"""Pair every node with every other node using the circle method.

No two pairs in a round have a node in common. With an even number n of nodes, there are n − 1 rounds. With an
odd number n, there are n rounds, and one node is idle in each round.
"""

from __future__ import annotations


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Return the rounds for nodes 0 … count − 1. Each pair (a, b) with a < b is in exactly one round."""
    if count < 2:
        return []
    slots = count + count % 2
    last = slots - 1
    schedule = []
    for turn in range(last):
        # The node in the last slot never moves. If the number of nodes is odd, this slot is empty.
        pairs = [(turn, last)]
        for distance in range(1, slots // 2):
            pairs.append(((turn + distance) % last, (turn - distance) % last))
        schedule.append(sorted((min(pair), max(pair)) for pair in pairs if max(pair) < count))
    return schedule
