"""The ledger of launches, and the identity of a cell."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_matrices import outcome

from harness.core.errors import UsageError
from harness.evidence.schema.bundle import Launch, Manifest, Replaced, Verdict
from harness.settings import Settings
from harness.versions.candidates import Candidate
from harness.versions.cell import Cell, Launcher, Ledger, with_evidence

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


CLIENT = Replaced(name="client", spec="1.0", version="1.0", digest="d", origin="the package index")
LAUNCH = Launch(launcher="konduktor", namespace="n", kind="JobSet")


@pytest.mark.parametrize(
    ("code", "replaced", "digest", "result", "explanation"),
    [
        (0, [CLIENT], "", "PASS", "all points"),
        (0, [CLIENT], "d", "PASS", "all points"),
        (0, [CLIENT], "e", "UNKNOWN", "1.0 of client was changed after the first launch"),
        (0, [], "", "UNKNOWN", "the launch used the locked version of client instead of 1.0"),
        (0, [CLIENT.model_copy(update={"version": "1.1"})], "", "UNKNOWN", "client 1.1 instead of 1.0"),
        (-9, [CLIENT], "", "UNKNOWN", "ended without"),
    ],
)
def test_verdict_counts_if_launch_used_packages_of_cell(
    tmp_path: Path, code: int, replaced: list[Replaced], digest: str, result: str, explanation: str
) -> None:
    """Contract: no PASS of another version, nor of a harness that was killed."""
    bundle = tmp_path / "latest"
    bundle.mkdir()
    manifest = Manifest(nonce="n", started_at="t", launch=LAUNCH, replaced=replaced)
    (bundle / "manifest.json").write_text(manifest.model_dump_json())
    (bundle / "verdict.json").write_text(Verdict(verdict="PASS", explanation="all points").model_dump_json())
    cell = Cell((Candidate("client", "1.0", "1.0", "1.0", digest=digest),))
    before = outcome("UNKNOWN", exit_code=code, explanation="ended without a verdict")
    found = with_evidence(before, tmp_path, cell)
    assert found.result == result
    assert explanation in found.explanation


def test_a_locked_package_must_not_be_replaced(tmp_path: Path) -> None:
    bundle = tmp_path / "latest"
    bundle.mkdir()
    manifest = Manifest(nonce="n", started_at="t", launch=LAUNCH, replaced=[CLIENT])
    (bundle / "manifest.json").write_text(manifest.model_dump_json())
    (bundle / "verdict.json").write_text(Verdict(verdict="PASS", explanation="").model_dump_json())
    found = with_evidence(
        outcome("UNKNOWN", exit_code=0), tmp_path, Cell((Candidate("client", "", "1.0", "1.0"),))
    )
    assert found.result == "UNKNOWN"


@pytest.mark.parametrize(
    ("code", "result"),
    [(64, "not installable"), (2, "UNKNOWN"), (1, "UNKNOWN"), (None, "UNKNOWN"), (-15, "UNKNOWN")],
)
def test_without_bundle_only_bad_usage_is_matter_of_packages(
    tmp_path: Path, code: int | None, result: str
) -> None:
    found = with_evidence(outcome("UNKNOWN", exit_code=code), tmp_path, Cell(()))
    assert found.result == result


def key(tmp_path: Path, job: Path = JOB, digest: str = "", **settings: object) -> str:
    launcher = Launcher(job, Settings(**settings), tmp_path)  # type: ignore[arg-type]
    return launcher.key(Cell((Candidate("client", "1.0", "1.0", "1.0", digest=digest),)))


def test_cell_is_another_one_if_what_is_launched_differs(tmp_path: Path) -> None:
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
    with pytest.raises(UsageError, match="also sets the version of pluto-ml"):
        launcher.check(["pluto-ml"])
