"""Define defects in training steps: in a rank's data, in the state after a resume, and in the loss."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Sequence
from typing import Any

import torch

from .. import data_order
from ..trainer import Trainer
from . import before_log, instead

KILLED = 1
"""The rank that is killed, or whose loss is NaN."""


def other_seed(rank: int) -> None:
    """Train this rank on batches from a different seed."""
    if int(os.environ.get("RANK", "0")) == rank:
        instead(
            data_order, "batch_of", lambda original: lambda seed, *arguments: original(seed + 1, *arguments)
        )


def dropped(rank: int) -> None:
    """Drop the last sequence from this rank's share of each batch."""

    def wrap(share: Any) -> Any:
        def shared(batch: Sequence[int], of: int, world: int) -> Sequence[int]:
            sequences: Sequence[int] = share(batch, of, world)
            return sequences[:-1] if of == rank else sequences

        return shared

    instead(data_order, "share", wrap)


def silent(rank: int) -> None:
    """Do not log which sequences this rank trained on."""
    if int(os.environ.get("RANK", "0")) == rank:
        before_log(lambda _, values: {name: v for name, v in values.items() if "/data/" not in name})


def repeated_data(step: int) -> None:
    """Kill a rank before this step, and resume with data from the beginning of the epoch."""
    epoch_starts: dict[int, int] = {}

    def wrap(resume: Any) -> Any:
        def resumed(self: Trainer) -> None:
            resume(self)
            epoch, place = divmod(self.step, self.per_epoch)
            epoch_starts[epoch] = place * self.options.batch

        return resumed

    def taken(original: Any) -> Any:
        def batch_of(seed: int, epoch: int, count: int, first: int, batch: int) -> Sequence[int]:
            sequences: Sequence[int] = original(seed, epoch, count, first - epoch_starts.get(epoch, 0), batch)
            return sequences

        return batch_of

    instead(Trainer, "_resume", wrap)
    instead(data_order, "batch_of", taken)
    killed(step)


def half_resumed(step: int) -> None:
    """Kill a rank before this step, and resume without restoring the optimizer."""
    instead(torch.optim.AdamW, "load_state_dict", lambda _: lambda *_: None)
    killed(step)


def killed(step: int) -> None:
    """Kill a rank before this step, unless the run has been resumed. The kill itself is not a defect."""
    steps: list[int] = []

    def wrap(one_step: Any) -> Any:
        def stepped(self: Trainer) -> None:
            steps.append(self.step)
            if self.step == step and steps[0] == 0 and self.ranks.rank == KILLED:
                os.kill(os.getpid(), signal.SIGKILL)
            one_step(self)

        return stepped

    instead(Trainer, "_one_step", wrap)


def nan(step: int) -> None:
    """Make one rank's loss NaN in this step."""

    def wrap(loss_of: Any) -> Any:
        def lost(self: Trainer, sequences: Any) -> Any:
            loss = loss_of(self, sequences)
            return loss * math.nan if (self.step, self.ranks.rank) == (step, KILLED) else loss

        return lost

    instead(Trainer, "_loss_of", wrap)
