"""Tokens per second of train_framework beside a plain loop, on the same model and data in one process.

    docker run --rm -v $PWD/bench:/bench:ro -e PYTHONPATH=/workspace IMAGE python3 /bench/train_framework.py

The plain loop is what a short script does: a batch, forward, backward, clipping, AdamW. It has no DDP, no
order of data, no tracker, no checkpoint. The trainer's checkpoints are outside of what is measured, and no
tracker is set. Short rounds of the two alternate, so that a busy machine disturbs both; the ratio is the
median over all rounds. Ratios of one run can be compared; tokens per second of different machines cannot.
`--device cuda` for a GPU.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch.nn import functional
from training import model_setup, source, token_sequences
from training.options import parsed
from training.ranks import meet
from training.token_sequences import Stream
from training.trainer import Trainer

SIZES = {"small": (2, 64, 16, 2), "medium": (4, 192, 8, 1)}
"""Layers, width, sequences of a step, and steps of a round."""
ROUNDS = 21


def plain(stream: Stream, options: argparse.Namespace, device: torch.device) -> Callable[[], None]:
    """Return what makes one step of the plain loop."""
    model = model_setup.model(options, token_sequences.Bytes()).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    tokens = torch.tensor(stream.tokens, device=device)
    numbers = torch.Generator().manual_seed(1)
    parts = options.batch // options.micro_batch

    def step() -> None:
        for _ in range(parts):
            firsts = torch.randint(
                len(tokens) - options.context - 1, (options.micro_batch,), generator=numbers
            )
            rows = torch.stack([tokens[first : first + options.context + 1] for first in firsts.tolist()])
            logits = model(rows[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()) / parts
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()  # as everybody prints it

    return step


def seconds(step: Callable[[], None], steps: int) -> float:
    """Return how long some steps take."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> int:
    given = argparse.ArgumentParser()
    given.add_argument("--device", default="cpu")
    asked = given.parse_args()
    folder = Path(tempfile.mkdtemp())
    source.main(["--out-dir", str(folder), "--documents", "1000"])
    print(f"torch {torch.__version__} on {asked.device}, {torch.get_num_threads()} threads allowed, 1 used")
    print(f"{'model':8} {'weights':>9} {'plain':>9} {'trainer':>9} {'trainer / plain (least–most)':>30}")
    for name, (layers, width, batch, steps) in SIZES.items():
        words = [
            "--data-dir",
            folder,
            "--out-dir",
            folder,
            "--run",
            name,
            "--layers",
            layers,
            "--width",
            width,
        ]
        words += ["--batch", batch, "--micro-batch", 8, "--epochs", 100, "--device", asked.device]
        options = parsed(list(map(str, words)))
        torch.set_num_threads(options.threads)
        ranks = meet(options.device, options.meeting, options.timeout)
        train, val = (
            token_sequences.read([folder / f"{part}.jsonl"], token_sequences.Bytes(), 128)
            for part in ("train", "val")
        )
        torch.manual_seed(1)
        trainer = Trainer(options, ranks, model_setup.model(options, token_sequences.Bytes()), train, val)
        both = {"plain": plain(train, options, ranks.device), "trainer": trainer._one_step}
        for step in both.values():
            seconds(step, 3)
        found: dict[str, list[float]] = {mode: [] for mode in both}
        for _ in range(ROUNDS):
            for mode, step in both.items():
                found[mode].append(steps * batch * 128 / seconds(step, steps))
        ratios = [one / other for one, other in zip(found["trainer"], found["plain"], strict=True)]
        weights = sum(value.numel() for value in trainer.model.parameters())
        rates = [median(found[mode]) for mode in both]
        print(
            f"{name:8} {weights:9} {rates[0]:9.0f} {rates[1]:9.0f} {median(ratios):12.2f} "
            f"({min(ratios):.2f}–{max(ratios):.2f})",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
