"""What a job's message says of a trainer that failed. last_lines/ has what torchrun 2.6 printed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.torchrun_controller.decide.trainer_exit import explained
from harness.torchrun_controller.objects import command

LOGS = Path(__file__).parent / "last_lines"
CODE = "Error, exit code 1"


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ("exit_9", "Error, exit code 1 of torchrun, because rank 1 ended with exit code 9"),
        ("sigkill", "Error, exit code 1 of torchrun, because rank 1 was ended by signal 9 (SIGKILL)"),
        (
            "recorded_exception",
            "Error, exit code 1 of torchrun, because rank 1 ended with exit code 1: ValueError: xxx",
        ),
        ("two_ranks", "Error, exit code 1 of torchrun, because rank 0 ended with exit code 9"),
        ("no_such_file", "Error, exit code 1 of torchrun, because rank 1 ended with exit code 2"),
    ],
)
def test_exit_code_of_rank_stands_beside_torchrun_s(log: str, says: str) -> None:
    """Contract: of several ranks the one that torchrun calls the root cause."""
    assert explained(CODE, (LOGS / f"{log}.log").read_text()) == says


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("", CODE),
        ("bash: line 9: torchrun: command not found\n", f"{CODE}: bash: line 9: torchrun: command not found"),
        ("one\n\n=====\n", f"{CODE}: one"),
        ("rank : 1\n exitcode : 9", f"{CODE}: exitcode : 9"),
        (
            "ERROR: No matching distribution found for x\nsetupCommand ended with exit code 1\n",
            "setupCommand failed with exit code 1: ERROR: No matching distribution found for x",
        ),
        ("setupCommand ended with exit code 3", "setupCommand failed with exit code 3"),
    ],
)
def test_without_torchrun_s_table_the_last_line_says_it(message: str, says: str) -> None:
    """Contract: the container's own code, with the last line of its log, or the setup by its name."""
    assert explained(CODE, message) == says


@given(st.text(alphabet="rank :(local_)\nexitcode0123456789-pid=", max_size=300))
def test_any_text_of_a_user_is_no_error(text: str) -> None:
    """Contract: one bounded line, whatever stands in a container's termination message."""
    explanation = explained(CODE, text)
    assert "\n" not in explanation
    assert len(explanation) < 500


@pytest.mark.parametrize(
    ("setup", "code", "says"),
    [
        ("false", 1, "setupCommand ended with exit code 1"),
        ("(exit 4)", 4, "setupCommand ended with exit code 4"),
        ("exit 0", 1, "setupCommand ended with exit code 0"),
        ("cat <<X\nnever closed", 1, "setupCommand ended with exit code 0"),
        ("if true; then", 2, "setupCommand ended with exit code 2"),
        ('echo "never closed', 2, "setupCommand ended with exit code 2"),
        ("echo goes on \\", 7, ""),
        ("trap 'true' EXIT", 7, ""),
        ("set +e\nfalse", 7, ""),
        ("cd /", 7, ""),
    ],
)
def test_ranks_start_only_after_a_successful_setup(setup: str, code: int, says: str) -> None:
    """Contract: a setup that ends the shell is named, and never looks like ranks that have succeeded."""
    lines = ["set -e", command.EXIT_AT_SIGTERM, command.SETUP_BEGINS, setup, command.SETUP_ENDED, "exit 7"]
    ended = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.strip().splitlines()[-1:]) == (code, [says] if says else [])
