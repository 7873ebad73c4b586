"""What each rank takes in which step, and how far it goes: functions of seed, epoch and place alone.

So a resumed run takes what the first one would have taken. With another number of ranks it goes on at the
same sequence, and the ranks share each step's batch anew.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import lru_cache


@lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, count: int) -> Sequence[int]:
    """Return the numbers below `count` in the order of this epoch.

    Python's own generator, because its shuffle is the same on every machine and version of PyTorch.
    """
    order = list(range(count))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order


def steps(count: int, batch: int) -> int:
    """Return the steps of an epoch. The last one may have fewer sequences."""
    return -(-count // batch)


def batch_of(seed: int, epoch: int, count: int, first: int, batch: int) -> Sequence[int]:
    """Return the sequences of the step that begins at place `first` of the epoch."""
    return permutation(seed, epoch, count)[first : first + batch]


def share(batch: Sequence[int], rank: int, world: int) -> Sequence[int]:
    """Return one rank's part: the ranks' parts together are the batch, each sequence once, in its order."""
    return batch[len(batch) * rank // world : len(batch) * (rank + 1) // world]


def rate(step: int, steps: int, warmup: int, highest: float) -> float:
    """Return the learning rate of a step: linear up to the highest, then a cosine down to a tenth of it."""
    if step < warmup:
        return highest * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return highest * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, done))))
