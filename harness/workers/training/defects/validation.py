"""Define defects in validation: in the sums, the schedule, the logged values and the texts."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .. import evaluation, source, train_framework, trainer
from ..evaluation import Loss
from ..trainer import Trainer
from . import before_log, instead

TOLD_MORE = 0.5
"""The number of nats by which the logged validation loss is overstated."""
EASY = 10
"""Number of the easiest documents that `_keep_easiest` leaves in val.jsonl."""


def double_tail(_: int) -> None:
    """Count the last chunk twice in the evaluation."""

    def wrap(chunks: Any) -> Any:
        def counted(*arguments: Any) -> list[range]:
            ranges: list[range] = chunks(*arguments)
            return [*ranges, ranges[-1]]

        return counted

    instead(evaluation, "chunks", wrap)


def mean_of_ranks(_: int) -> None:
    """Compute the validation loss as the mean of the ranks' means, without weighting them by token counts."""

    def wrap(evaluate: Any) -> Any:
        def evaluated(model: Any, stream: Any, chunk: int, rank: int, world: int, device: Any) -> Loss:
            whole, chunks = evaluate(model, stream, chunk, rank, world, device), evaluation.chunks
            evaluation.chunks = lambda *arguments: chunks(*arguments)[rank::world]
            try:
                own = evaluate(model, stream, chunk, 0, 1, device)
            finally:
                evaluation.chunks = chunks
            mean = torch.tensor([own.mean / world], dtype=torch.float64, device=device)
            dist.all_reduce(mean)
            return Loss(float(mean), whole.tokens)

        return evaluated

    instead(trainer, "evaluate", wrap)


def not_evaluated(epoch: int) -> None:
    """Skip the validation after this epoch. Epochs are numbered from 1."""

    def wrap(end_epoch: Any) -> Any:
        def ended(self: Trainer) -> Loss:
            if self.step != epoch * self.per_epoch:
                loss: Loss = end_epoch(self)
                return loss
            self.save({})
            return Loss(math.inf, 0)

        return ended

    instead(Trainer, "_end_epoch", wrap)


def perplexity(_: int) -> None:
    """Compute the perplexity as a power of 2 instead of e."""
    instead(Loss, "perplexity", lambda _: property(lambda self: 2.0**self.mean))


def other_loss_logged(_: int) -> None:
    """Log a higher validation loss than the one in the checkpoint, with a matching perplexity."""

    def other(_: int, values: dict[str, float]) -> dict[str, float]:
        if "val/loss" not in values:
            return values
        loss = values["val/loss"] + TOLD_MORE
        return values | {"val/loss": loss, "val/perplexity": math.exp(loss)}

    before_log(other)


def easy(_: int) -> None:
    """Keep only the documents in val.jsonl that are easiest to predict."""

    def wrap(meet: Any) -> Any:
        def met(*arguments: Any) -> Any:
            ranks = meet(*arguments)
            if ranks.rank == 0:
                folder = Path(sys.argv[sys.argv.index("--data-dir") + 1])
                # training.sh generates the texts from the same Markov chain (source.py).
                _keep_easiest(folder / "val.jsonl", source.chain(8, 64, 1))
            ranks.of_rank_0(None)
            return ranks

        return met

    instead(train_framework, "meet", wrap)


def _keep_easiest(path: Path, chain: source.Chain) -> None:
    lines = path.read_text().splitlines(keepends=True)
    # Consider only long documents, because the mean loss of a short document is mostly chance.
    long_lines = sorted(lines, key=len)[len(lines) // 2 :]
    path.write_text(
        "".join(sorted(long_lines, key=lambda line: chain.loss([json.loads(line)["text"]]))[:EASY])
    )
