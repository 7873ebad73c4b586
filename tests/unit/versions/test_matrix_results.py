"""The status of a cell, and the exit code of a matrix."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_matrices import cell, document, outcome

from harness.versions.matrix_results import CellResult, Document, Status, worst

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
def test_cell_is_repeated_until_it_is_flake_or_failure(found: CellResult, repeat: int, needed: bool) -> None:
    assert found.needs_launch(repeat) == needed


def test_exit_code_is_that_of_worst_unexpected_cell(tmp_path: Path) -> None:
    """Contract: a proof of a failure is worse than a missing proof, and that than a missing launch."""
    assert document(tmp_path, cell(PASS), cell(FAIL, expected="FAIL")).exit_code == 0
    assert document(tmp_path, cell(ABSENT), cell(UNKNOWN)).exit_code == 2
    assert document(tmp_path, cell(ABSENT), cell(UNKNOWN), cell(FAIL)).exit_code == 1
    assert worst([]) == 0
    assert document(tmp_path, cell(PASS), cell(FAIL), cell(PASS)).summary == "1 failed, 2 passed"


def grid(folder: Path, *rows: tuple[str, str, CellResult]) -> Document:
    """Return a matrix of two packages. A row has the version of each and a cell."""
    cells = [
        found.model_copy(
            update={
                "versions": {"client": client, "launcher": launcher},
                "options": ["--replace", f"client={client}", "--replace", f"launcher={launcher}"],
            }
        )
        for client, launcher, found in rows
    ]
    return document(folder, *cells)


def commands(found: Document) -> list[str]:
    return [" ".join(command) for command in found.bisects]


def test_failure_is_searched_for_from_nearest_version_that_passed(tmp_path: Path) -> None:
    """Contract: only one package differs between the ends, and the others keep their versions."""
    rows = [("1", "a", cell(PASS)), ("2", "a", cell(PASS)), ("3", "a", cell(FAIL)), ("4", "b", cell(PASS))]
    assert commands(grid(tmp_path, *rows)) == [
        "harness bisect client --good 2 --bad 3 --job jobs/<multinode>.yaml --replace launcher=a"
    ]


def test_version_failing_with_all_others_is_searched_once(tmp_path: Path) -> None:
    rows = [
        (client, launcher, cell(PASS if launcher == "a" else FAIL)) for client in "12" for launcher in "ab"
    ]
    assert commands(grid(tmp_path, *rows)) == [
        "harness bisect launcher --good a --bad b --job jobs/<multinode>.yaml --replace client=1"
    ]


def test_combination_that_fails_can_be_fault_of_either_package(tmp_path: Path) -> None:
    rows = [
        (client, launcher, cell(FAIL if (client, launcher) == ("2", "b") else PASS))
        for client in "12"
        for launcher in "ab"
    ]
    assert [command.split()[2] for command in commands(grid(tmp_path, *rows))] == ["client", "launcher"]


@pytest.mark.parametrize("found", [cell(ABSENT), cell(FAIL, expected="FAIL"), cell(FAIL, PASS), cell()])
def test_nothing_is_searched_for_without_an_unexpected_failure(tmp_path: Path, found: CellResult) -> None:
    assert commands(grid(tmp_path, ("1", "a", cell(PASS)), ("2", "a", found))) == []


def test_version_of_checkout_is_not_end_of_search(tmp_path: Path) -> None:
    """Contract: a checkout that has the version 2 is not the published 2."""
    found = grid(tmp_path, ("1", "a", cell(PASS)), ("2", "a", cell(FAIL)))
    found.axes["client"][1].digest = "0123"
    assert commands(found) == []
    found.axes["client"][0].digest, found.axes["client"][1].digest = "0123", ""
    assert commands(found) == []
