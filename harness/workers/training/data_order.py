"""Compute each step's data and learning rate from the seed and the current epoch and step.

A resumed run therefore trains on the same data as an uninterrupted run. If the number of ranks has changed,
the resumed run continues at the same sequence, and divides each batch among the new number of ranks.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import lru_cache


@lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, count: int) -> Sequence[int]:
    """Return the numbers from 0 to `count` - 1 in this epoch's order.

    The order comes from Python's random generator, whose shuffle is the same on every machine and with every
    version of PyTorch.
    """
    order = list(range(count))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order


def steps(count: int, batch: int) -> int:
    """Return the number of steps per epoch. The last step may have fewer sequences."""
    return -(-count // batch)


def batch_of(seed: int, epoch: int, count: int, first: int, batch: int) -> Sequence[int]:
    """Return the sequence indices for the step that begins at position `first` in the epoch."""
    return permutation(seed, epoch, count)[first : first + batch]


def share(batch: Sequence[int], rank: int, world: int) -> Sequence[int]:
    """Return one rank's share of a batch. The shares of all ranks, in rank order, form the batch."""
    return batch[len(batch) * rank // world : len(batch) * (rank + 1) // world]


def rate(step: int, steps: int, warmup: int, highest: float) -> float:
    """Return a step's learning rate: a linear warm-up, then a cosine decay to a tenth of `highest`."""
    if step < warmup:
        return highest * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return highest * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, progress))))
