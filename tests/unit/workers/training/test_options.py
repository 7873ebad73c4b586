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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-steps", "-1"], "--max-steps must be 1 or more; found -1. Omit the option for no limit"),
        (["--max-steps", "0"], "--max-steps must be 1 or more; found 0"),
        (["--log-every", "0"], "--log-every must be 1 or more; found 0"),
        (["--threads", "0"], "--threads must be 1 or more"),
        (["--batch", "0"], "--batch must be 1 or more; found 0"),
        (["--warmup", "-5"], "--warmup must be 0 or more"),
        (["--lr", "nan"], "--lr must be more than 0; found nan"),
        (["--lr", "0"], "--lr must be more than 0; found 0.0"),
        (["--weight-decay", "-1"], "--weight-decay must be 0 or more"),
        (["--clip", "nan"], "--clip must be 0 or more; found nan"),
        (["--dropout", "1"], "--dropout must be at least 0 and less than 1"),
        (["--meeting", "0"], "--meeting must be more than 0"),
        (["--timeout", "inf"], "--timeout must be more than 0; found inf"),
        (["--run-name", ""], "--run-name must be the name of a single folder; found ''"),
        (["--run-name", " "], "--run-name must be the name of a single folder; found ' '"),
        (["--run-name", "a/b"], "--run-name must be the name of a single folder; found 'a/b'"),
        (["--run-name", "a\n"], "--run-name must have at most 200 bytes and no control characters"),
        (["--run-name", "é" * 101], "--run-name must have at most 200 bytes"),
    ],
)
def test_an_option_out_of_range_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contract: before the first step, with the option, the range and the value."""
    with pytest.raises(SystemExit) as refused:
        options.sensible(options.parser(), words)
    assert refused.value.code == 2
    assert message in capsys.readouterr().err


def test_empty_run_id_does_not_make_output_folder_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contract: all trainings whose variable is unset would continue each other's run."""
    monkeypatch.setenv("RUN_ID", "")
    with pytest.raises(SystemExit):
        options.sensible(options.parser(), [])
    assert "--run-name must be the name of a single folder" in capsys.readouterr().err


def test_a_resumed_run_names_the_options_that_changed() -> None:
    """Contract: those that affect the result, as they apply from now on; unknown ones are left out."""
    before = options.plain(options.sensible(options.parser(), []))
    words = ["--weight-decay", "0.3", "--lr", "1e-3", "--keep", "9", "--out-dir", "/b", "--run-name", "b"]
    now = options.plain(options.sensible(options.parser(), words))
    assert options.changes(before | {"old": 1}, now) == "--lr 0.003 → 0.001, --weight-decay 0.1 → 0.3"
    assert options.changes(before, before) == ""
