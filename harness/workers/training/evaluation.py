"""The mean loss over all tokens of a file, exact over all ranks and the same for any number of them.

Each rank takes some of the chunks, sums the loss in float64 and counts the tokens as integers. At the end
both are summed over the ranks, and divided once. Nothing is padded and nothing is counted twice. No
collective is in the loop, so ranks with fewer chunks never make others wait for a call that does not come. A
chunk is the same for any number of ranks: the rounding of a product may depend on its shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from .texts import Stream


@dataclass(frozen=True)
class Loss:
    """A mean over tokens, in nats."""

    mean: float
    tokens: int

    @property
    def perplexity(self) -> float:
        """exp of the mean; inf where that is too large for a float."""
        return math.exp(self.mean) if self.mean < 700 else math.inf


def evaluate(
    model: nn.Module, stream: Stream, chunk: int, rank: int, world: int, device: torch.device
) -> Loss:
    """Return the loss over the whole stream. Every rank gets the same. Leaves all generators as they are."""
    was_training = model.training
    model.eval()
    total, tokens = 0.0, 0
    for sequences in chunks(stream, chunk)[rank::world]:
        rows = torch.tensor([stream.sequence(index) for index in sequences], device=device)
        with torch.no_grad():
            logits = model(rows[:, :-1]).float()
            losses = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none")
        total += float(losses.double().sum())
        tokens += losses.numel()
    model.train(was_training)
    if world > 1:
        # Two collectives, because each has one type: a float64 counts exactly only up to 2^53.
        sums = torch.tensor([total], dtype=torch.float64, device=device)
        counts = torch.tensor([tokens], dtype=torch.int64, device=device)
        dist.all_reduce(sums)
        dist.all_reduce(counts)
        total, tokens = float(sums), int(counts)
    return Loss(total / tokens, tokens)


def chunks(stream: Stream, size: int) -> list[range]:
    """Return the sequences of each chunk. The shorter sequence at the end is a chunk of its own."""
    whole = stream.whole
    made = [range(first, min(first + size, whole)) for first in range(0, whole, size)]
    return made if stream.sequences == whole else [*made, range(whole, whole + 1)]
