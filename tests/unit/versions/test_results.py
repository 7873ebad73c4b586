"""The status of a cell, and the exit code of a matrix."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_matrices import cell, document, outcome

from harness.versions.results import CellResult, Status, worst

PASS, FAIL, UNKNOWN = outcome(), outcome("FAIL", "rank.crashed"), outcome("UNKNOWN")
ABSENT = outcome("not installable")


@pytest.mark.parametrize(
    ("found", "status", "code"),
    [
        (cell(), "not run", 2),
        (cell(PASS), "passed", 0),
        (cell(FAIL), "failed", 1),
        (cell(UNKNOWN), "failed", 2),
        (cell(ABSENT), "failed", 64),
        (cell(UNKNOWN, FAIL), "failed", 1),
        (cell(FAIL, PASS), "flaky", 0),
        (cell(PASS.model_copy(update={"exit_code": 2})), "failed", 2),
        (cell(FAIL, expected="FAIL"), "expected failure", 0),
        (cell(FAIL, expected="FAIL rank.crashed"), "expected failure", 0),
        (cell(FAIL, expected="FAIL rank.silent"), "failed", 1),
        (cell(UNKNOWN, expected="FAIL"), "failed", 2),
        (cell(PASS, expected="FAIL"), "unexpected pass", 0),
        (cell(PASS, FAIL, expected="FAIL"), "flaky", 0),
        (cell(PASS, UNKNOWN, expected="FAIL"), "failed", 2),
    ],
)
def test_a_cell_has_a_status_and_an_exit_code(found: CellResult, status: Status, code: int) -> None:
    assert (found.status, found.exit_code) == (status, code)


@pytest.mark.parametrize(
    ("found", "repeat", "needed"),
    [
        (cell(), 1, True),
        (cell(PASS), 3, False),
        (cell(FAIL), 1, False),
        (cell(FAIL), 3, True),
        (cell(FAIL, PASS), 3, False),
        (cell(FAIL, FAIL, FAIL), 3, False),
        (cell(ABSENT), 3, False),
        (cell(PASS, expected="FAIL"), 2, True),
        (cell(FAIL, expected="FAIL"), 2, False),
    ],
)
def test_a_cell_is_repeated_until_it_is_a_flake_or_a_failure(
    found: CellResult, repeat: int, needed: bool
) -> None:
    assert found.needs_launch(repeat) == needed


def test_the_exit_code_is_that_of_the_worst_unexpected_cell(tmp_path: Path) -> None:
    """Contract: a proof of a failure is worse than a missing proof, and that than a missing launch."""
    assert document(tmp_path, cell(PASS), cell(FAIL, expected="FAIL")).exit_code == 0
    assert document(tmp_path, cell(ABSENT), cell(UNKNOWN)).exit_code == 2
    assert document(tmp_path, cell(ABSENT), cell(UNKNOWN), cell(FAIL)).exit_code == 1
    assert worst([]) == 0
    assert document(tmp_path, cell(PASS), cell(FAIL), cell(PASS)).summary == "1 failed, 2 passed"
