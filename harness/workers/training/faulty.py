"""Train like train_framework.py, with one defect that the training checks must detect.

    torchrun … -m training.faulty KIND[:NUMBER] [options of train_framework.py]

The defect changes the run's actual data, sums, checkpoints or curves. KIND is not passed to the checks.
NUMBER is a step, an epoch or a rank; each kind has a default. If a kind needs a resume, it kills a rank,
unless the run has already been resumed. Only tests use this module (tests/k8s/test_training_faults.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from . import train_framework
from .defects import checkpoints, steps, validation
from .ranks import ended_with

KINDS: dict[str, tuple[Callable[[int], None], int]] = {
    "torn": (checkpoints.torn, 24),
    "edited": (checkpoints.edited, 64),
    "unsaved": (checkpoints.unsaved, 0),
    "nan-weight": (checkpoints.nan_weight, 40),
    "frozen": (checkpoints.frozen, 0),
    "stale-best": (checkpoints.stale, 0),
    "removed-best": (checkpoints.removed, 0),
    "double-tail": (validation.double_tail, 0),
    "mean-of-ranks": (validation.mean_of_ranks, 0),
    "not-evaluated": (validation.not_evaluated, 1),
    "perplexity": (validation.perplexity, 0),
    "other-loss-logged": (validation.other_loss_logged, 0),
    "easy": (validation.easy, 0),
    "other-seed": (steps.other_seed, 1),
    "dropped": (steps.dropped, 1),
    "silent": (steps.silent, 1),
    "repeated-data": (steps.repeated_data, 18),
    "half-resumed": (steps.half_resumed, 18),
    "nan": (steps.nan, 20),
    "killed": (steps.killed, 18),
}
"""Maps each kind of defect to the function that injects it, and to a default step, epoch or rank."""


def main(arguments: list[str] | None = None) -> int:
    """Train with a defect, and return the trainer's exit code, or 2 for an unknown kind."""
    words = sys.argv[1:] if arguments is None else arguments
    kind, _, number = (words[0] if words else "").partition(":")
    if kind not in KINDS or (number and not number.isdecimal()):
        print(f"expected KIND[:NUMBER] with one of {', '.join(KINDS)}; found {words[:1]}", file=sys.stderr)
        return 2
    inject, default = KINDS[kind]
    inject(int(number) if number else default)
    return train_framework.main(words[1:])


if __name__ == "__main__":
    ended_with(main)
