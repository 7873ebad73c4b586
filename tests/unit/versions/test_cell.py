"""The ledger of launches, and the identity of a cell."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_matrices import outcome

from harness.core.errors import UsageError
from harness.settings import Settings
from harness.versions.candidates import Candidate
from harness.versions.cell import Cell, Launcher, Ledger

JOB = Path("jobs/multinode.yaml")


def test_a_ledger_survives_an_interrupted_write(tmp_path: Path) -> None:
    """Contract: a truncated last line is the launch that is repeated; nothing else is lost."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    for attempt in (2, 1):
        ledger.add(outcome(attempt=attempt))
    path.write_bytes(path.read_bytes() + path.read_bytes()[:50])
    again = Ledger(path)
    assert [one.attempt for one in again.of("k")] == [1, 2]
    again.add(outcome(attempt=3))
    assert len(Ledger(path).of("k")) == 3


def test_a_ledger_with_another_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"key": 1}\n')
    with pytest.raises(UsageError, match="line 1"):
        Ledger(path)


def key(tmp_path: Path, job: Path = JOB, digest: str = "", **settings: object) -> str:
    launcher = Launcher(job, Settings(**settings), tmp_path)  # type: ignore[arg-type]
    return launcher.key(Cell((Candidate("client", "1.0", "1.0", "1.0", digest=digest),)))


def test_a_cell_is_another_one_if_what_is_launched_differs(tmp_path: Path) -> None:
    """Contract: an edited checkout or job, and another setting, are not a launch that was done already."""
    edited = tmp_path / "job.yaml"
    edited.write_text(JOB.read_text() + "# edited\n")
    keys = [
        key(tmp_path),
        key(tmp_path, edited),
        key(tmp_path, digest="a"),
        key(tmp_path, digest="b"),
        key(tmp_path, workers=1),
        key(tmp_path, replace={"zstandard": "0.25"}),
    ]
    assert len(set(keys)) == len(keys)
    assert key(tmp_path, runs_dir=tmp_path) == keys[0]


def test_a_package_of_the_settings_cannot_be_varied(tmp_path: Path) -> None:
    launcher = Launcher(JOB, Settings(replace={"pluto-ml": "0.0.28"}), tmp_path)
    with pytest.raises(UsageError, match="pluto-ml is also replaced"):
        launcher.check(["pluto-ml"])
