"""Tokens per second of train_framework beside a plain loop, on the same model and data in one process.

    docker run --rm -v $PWD/bench:/bench:ro -e PYTHONPATH=/workspace IMAGE python3 /bench/train_framework.py

The plain loop is what a short script does: a batch, forward, backward, clipping, AdamW. It has no DDP, no
order of data, no tracker, no checkpoint. The trainer's checkpoints are outside of what is measured. Short
rounds of all variants alternate, so that a busy machine disturbs each of them; a ratio is the median over all
rounds. Ratios of one run can be compared; tokens per second of different machines cannot.

The variants besides the trainer without a tracker:
- with PLUTO_API_KEY and the client's other variables: the trainer that logs to Pluto
- with MLFLOW_TRACKING_URI: the trainer that logs to MLflow
- with `--device cuda`: the trainer with `--deterministic`

If a tracker does not acknowledge all values, the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import torch
from torch.nn import functional
from training import model_setup, source, token_sequences
from training.options import parsed
from training.ranks import Ranks, meet, same_bits
from training.token_sequences import Stream
from training.trainer import Trainer

SIZES = {"small": (2, 64, 16, 2), "medium": (4, 192, 8, 1)}
"""Layers, width, sequences of a step, and steps of a round."""
ROUNDS = 21
TRACKERS = {"Pluto": "PLUTO_API_KEY", "MLflow": "MLFLOW_TRACKING_URI"}
"""Maps each tracker to the environment variable that selects it."""


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


@contextmanager
def only(tracker: str) -> Iterator[None]:
    """Select one tracker, or none for "", while a trainer is constructed."""
    removed = {name: os.environ.pop(name, "") for other, name in TRACKERS.items() if other != tracker}
    try:
        yield
    finally:
        os.environ.update({name: value for name, value in removed.items() if value})
        os.environ.pop("PLUTO_RUN_ID", None)  # The client sets it, and the next trainer needs its own run.


def trainer(
    options: argparse.Namespace, ranks: Ranks, train: Stream, val: Stream, tracker: str = ""
) -> Trainer:
    """Return a trainer that logs to one tracker, or to none."""
    options = argparse.Namespace(**{**vars(options), "run": f"{options.run}-{tracker or 'none'}"})
    torch.manual_seed(1)
    with only(tracker):
        return Trainer(options, ranks, model_setup.model(options, token_sequences.Bytes()), train, val)


def deterministic(step: Callable[[], None]) -> Callable[[], None]:
    """Return a step with deterministic algorithms."""

    def own() -> None:
        same_bits()
        step()
        torch.use_deterministic_algorithms(False)

    return own


def main() -> int:
    given = argparse.ArgumentParser()
    given.add_argument("--device", default="cpu")
    given.add_argument("--rounds", type=int, default=ROUNDS)
    asked = given.parse_args()
    folder, unsent = Path(tempfile.mkdtemp()), 0
    source.main(["--out-dir", str(folder), "--documents", "1000"])
    print(f"torch {torch.__version__} on {asked.device}, {torch.get_num_threads()} threads allowed, 1 used")
    print(f"{'model':8} {'weights':>9} {'variant':24} {'tokens/s':>9} {'ratio (least–most)':>24}")
    for name, (layers, width, batch, steps) in SIZES.items():
        words = ["--data-dir", folder, "--out-dir", folder, "--run", name, "--layers", layers]
        words += ["--width", width, "--batch", batch, "--micro-batch", 8, "--epochs", 100]
        options = parsed([str(word) for word in [*words, "--device", asked.device]])
        torch.set_num_threads(options.threads)
        ranks = meet(options.device, options.meeting, options.timeout)
        train, val = (
            token_sequences.read([folder / f"{part}.jsonl"], token_sequences.Bytes(), 128)
            for part in ("train", "val")
        )
        own = trainer(options, ranks, train, val)
        logging = {
            tracker: trainer(options, ranks, train, val, tracker)
            for tracker, variable in TRACKERS.items()
            if os.environ.get(variable)
        }
        variants: dict[str, Callable[[], None]] = {
            "plain": plain(train, options, ranks.device),
            "trainer": own._one_step,
        }
        variants |= {f"trainer with {tracker}": each._one_step for tracker, each in logging.items()}
        if ranks.device.type == "cuda":
            variants["trainer --deterministic"] = deterministic(own._one_step)
        for step in variants.values():
            seconds(step, 3)
        found: dict[str, list[float]] = {variant: [] for variant in variants}
        for _ in range(asked.rounds):
            for variant, step in variants.items():
                found[variant].append(steps * batch * 128 / seconds(step, steps))
        weights = sum(value.numel() for value in own.model.parameters())
        for variant, rates in found.items():
            base = "plain" if variant == "trainer" else "trainer"
            ratios = [one / other for one, other in zip(rates, found[base], strict=True)]
            compared = f"{median(ratios):.3f} ({min(ratios):.2f}–{max(ratios):.2f}) of {base}"
            print(
                f"{name:8} {weights:9} {variant:24} {median(rates):9.0f} "
                f"{compared if variant != 'plain' else '':>24}",
                flush=True,
            )
        for tracker, each in logging.items():
            if missing := each.trackers.finish(ok=True):
                print(f"{tracker} did not acknowledge {missing} values")
                unsent += missing
    return 1 if unsent else 0


if __name__ == "__main__":
    sys.exit(main())
