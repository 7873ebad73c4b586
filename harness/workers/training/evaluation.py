"""Compute the mean loss over all tokens in a file. The result is the same for any number of ranks.

Each rank evaluates some of the chunks, sums the loss in float64 and counts the tokens as integers. At the
end, the losses and counts are summed over the ranks, and a single division gives the mean. There is no
padding, and no token is counted twice. The loop does not contain a collective, so ranks with fewer chunks do
not block the others. The chunks do not depend on the number of ranks, because the rounding of a matrix
product may depend on its shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from .token_sequences import Stream


@dataclass(frozen=True)
class Loss:
    """A mean loss per token, in nats."""

    mean: float
    tokens: int

    @property
    def perplexity(self) -> float:
        """Return the exponential of the mean loss, or inf if it is too large for a float."""
        return math.exp(self.mean) if self.mean < 700 else math.inf


def evaluate(
    model: nn.Module, stream: Stream, chunk: int, rank: int, world: int, device: torch.device
) -> Loss:
    """Return the mean loss over the whole stream, with the same result on every rank.

    The states of the random generators are not changed.
    """
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
        # Use two collectives, because the loss is a float64 and the token count an int64. As a float64, the
        # count would be exact only up to 2^53.
        sums = torch.tensor([total], dtype=torch.float64, device=device)
        counts = torch.tensor([tokens], dtype=torch.int64, device=device)
        dist.all_reduce(sums)
        dist.all_reduce(counts)
        total, tokens = float(sums), int(counts)
    return Loss(total / tokens, tokens)


def chunks(stream: Stream, size: int) -> list[range]:
    """Return the sequence indices in each chunk. A shorter last sequence forms a separate chunk."""
    whole = stream.whole
    ranges = [range(first, min(first + size, whole)) for first in range(0, whole, size)]
    return ranges if stream.sequences == whole else [*ranges, range(whole, whole + 1)]
