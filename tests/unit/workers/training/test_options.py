"""The trainers' options come through torchrun as they were given."""

from __future__ import annotations

import argparse

import pytest

from harness.launch.workloads.training_spec import TrainingSpec
from harness.workers.training import options

TORCHRUN = (
    *("--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf"),
    *(
        "--max-restarts",
        "--monitor-interval",
        "--start-method",
        "--event-log-handler",
        "--role",
        "--run-path",
    ),
    *("--log-dir", "--redirects", "--tee", "--local-ranks-filter", "--duplicate-stdout-filters"),
    *("--duplicate-stderr-filters", "--node-rank", "--master-addr", "--master-port", "--local-addr"),
    *("--logs-specs", "--numa-binding", "--signals-to-handle"),
)
"""Options of torchrun 2.11 that take a value."""
SWITCHES = ("--standalone", "--no-python", "--virtual-local-rank")
ALIAS = "--run"


def through_torchrun(words: list[str]) -> list[str]:
    """Return what a parser like torchrun's leaves to its script."""
    made = argparse.ArgumentParser("torchrun")
    for option in (*TORCHRUN, *SWITCHES):
        underscored = f"--{option[2:].replace('-', '_')}"  # torchrun takes both
        made.add_argument(option, underscored, action="store_true" if option in SWITCHES else "store")
    made.add_argument("-m", "--module", action="store_true")
    made.add_argument("script")
    made.add_argument("rest", nargs=argparse.REMAINDER)
    left: list[str] = made.parse_args(["--nnodes=2", "-m", "training.train_framework", *words]).rest
    return left


@pytest.mark.parametrize(
    "option",
    [
        text
        for action in options.parser()._actions
        for text in action.option_strings
        if text.startswith("--") and text != ALIAS
    ],
)
def test_no_option_is_ambiguous_to_torchrun(option: str) -> None:
    """Contract: argparse before 3.12.7 refuses an option of the script that begins two of torchrun's."""
    assert through_torchrun([option, "1"]) == [option, "1"]


def test_a_launch_gives_what_torchrun_takes() -> None:
    words = TrainingSpec().words()
    own = words[words.index("training.train_framework") + 1 :]
    assert through_torchrun(own) == own
