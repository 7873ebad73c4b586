"""Train a small classifier on generated data with DDP, as a smoke test.

    torchrun … -m training.train --epochs 2 --batch 256 --samples 4096 --features 128 --classes 4 --lr 3e-3

The samples of each class are scattered around its centre. The exit code is 1 if the model did not learn, or
if the ranks have different weights at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from . import data_order
from .ranks import Ranks, ended_with, meet
from .trackers import Trackers

LEARNED = 0.5
"""The model has learned if its final loss is at most this fraction of its initial loss."""


def main(arguments: list[str] | None = None) -> int:
    """Train the classifier, and return the exit code."""
    options = parser().parse_args(arguments)
    ranks = meet(options.device, options.meeting, options.timeout)
    x, y = data(options)
    x, y = x.to(ranks.device), y.to(ranks.device)
    torch.manual_seed(options.seed)
    model = nn.Sequential(nn.Linear(options.features, 64), nn.ReLU(), nn.Linear(64, options.classes))
    model = model.to(ranks.device)
    parallel = DistributedDataParallel(model) if ranks.world > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    first_loss = loss = _loss(model, x, y)
    out = Path(os.environ.get("OUT_DIR", "/out"))
    folder = (out if out.is_dir() else Path(tempfile.mkdtemp())) / options.run
    trackers = Trackers(options.run, ranks.rank, ranks.world, vars(options), folder, 0, ranks.of_rank_0)
    step = 0
    for epoch in range(options.epochs):
        for first in range(0, options.samples, options.batch):
            batch = data_order.batch_of(options.seed, epoch, options.samples, first, options.batch)
            share = data_order.share(batch, ranks.rank, ranks.world)
            rows = torch.tensor(share or [0], device=ranks.device)
            sum_ = functional.cross_entropy(parallel(x[rows]), y[rows], reduction="sum")
            optimizer.zero_grad()
            (sum_ * (ranks.world / len(batch) if share else 0.0)).backward()
            optimizer.step()
            trackers.log(step, {f"rank{ranks.rank}/train/loss": float(sum_.detach()) / max(1, len(share))})
            step += 1
            ranks.tell("TRAIN", f"epoch {epoch + 1} sample {first + len(batch)}/{options.samples}")
        loss = _loss(model, x, y)
        ranks.tell("EPOCH", f"{epoch + 1}/{options.epochs} loss {loss:.4f} (before: {first_loss:.4f})")
    unsent = ranks.sum(trackers.finish(ok=True))
    if unsent:
        ranks.tell("DONE", f"{unsent:.0f} values are not in any tracker")
    return _end(ranks, model, first_loss, loss) or (1 if unsent else 0)


def parser() -> argparse.ArgumentParser:
    """Return the parser for the command line."""
    result = argparse.ArgumentParser(
        "python -m training.train", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for name, value in (("epochs", 2), ("batch", 256), ("samples", 4096), ("features", 128), ("classes", 4)):
        result.add_argument(f"--{name}", type=int, default=value)
    result.add_argument("--lr", type=float, default=3e-3)
    result.add_argument("--seed", type=int, default=42)
    name = os.environ.get("RUN_ID", "smoke")
    result.add_argument(
        "--run-name", "--run", dest="run", default=name, help="name of the run in the trackers"
    )
    result.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    result.add_argument("--meeting", type=float, default=60, help="seconds for all ranks to join")
    result.add_argument(
        "--timeout", type=float, default=300, help="seconds that a rank waits for other ranks"
    )
    return result


def data(options: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """Return samples (samples × features) and their class labels. They are the same on every rank."""
    numbers = torch.Generator().manual_seed(options.seed)
    centres = torch.randn(options.classes, options.features, generator=numbers)
    y = torch.randint(options.classes, (options.samples,), generator=numbers)
    return centres[y] + 0.5 * torch.randn(options.samples, options.features, generator=numbers), y


def _loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad():
        return float(functional.cross_entropy(model(x), y))


def _end(ranks: Ranks, model: nn.Module, first_loss: float, loss: float) -> int:
    """Print the result. Return the exit code, which is the same on every rank."""
    hasher = hashlib.sha256()
    for value in model.state_dict().values():
        hasher.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    weights = ranks.every(hasher.hexdigest())
    has_learned, same = loss <= LEARNED * first_loss, len(set(weights)) == 1
    ranks.tell("DONE", f"loss {first_loss:.4f} → {loss:.4f}, weights {weights[0]}")
    if not same:
        ranks.tell("DONE", f"the ranks have different weights: {' '.join(one[:12] for one in weights)}")
    if not has_learned:
        ranks.tell("DONE", f"the model did not learn: expected a loss of at most {LEARNED * first_loss:.4f}")
    return 0 if has_learned and same else 1


if __name__ == "__main__":
    ended_with(main)
