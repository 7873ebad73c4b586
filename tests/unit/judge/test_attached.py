"""Recorded launches that are judged like attached jobs get the same cause, or UNKNOWN."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from attached_bundles import attached
from sample_jobs import NIGHTLY

from harness.evidence import Bundle
from harness.evidence.schema.bundle import Verdict
from harness.faults.recorded_bundles import extract
from harness.judge import judge

RECORDED = {
    path.name.removesuffix(".tar.xz"): path for path in sorted(Path("tests/recorded").glob("*.tar.xz"))
}
SAMPLE = [name for name in RECORDED if name.startswith(("rank-", "controllers-"))][:: 1 if NIGHTLY else 12]
NAMES = list(RECORDED) if NIGHTLY else SAMPLE
KUBELET_SEES = {("launch.config_deleted", "image.config")}
"""Pairs of causes for the same fault. `harness attach` does not read Secrets, but the kubelet reports a
missing one."""


@cache
def _original(name: str, folder: Path) -> tuple[Path, Verdict]:
    path = extract(RECORDED[name], folder / name)
    return path, judge(Bundle.open(path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attached")


@pytest.mark.parametrize("picture", [True, False], ids=["picture", "followed"])
@pytest.mark.parametrize("name", NAMES)
def test_an_attached_launch_gets_the_same_cause_or_unknown(name, picture, folder, tmp_path):
    """Contract: without the nonce, expected ranks, frames and stages, there is neither a PASS nor a different
    accusation."""
    path, original = _original(name, folder)
    bundle = attached(path, tmp_path / "bundle", picture=picture)
    if bundle is None:
        return
    verdict = judge(bundle)
    assert [check for check in verdict.checks if check.cause == "run.judge_error"] == []
    assert verdict.verdict != "PASS"
    if verdict.verdict == "FAIL":
        causes = (original.cause, verdict.cause)
        assert original.verdict == "FAIL"
        assert causes[0] == causes[1] or causes in KUBELET_SEES
    else:
        assert verdict.cause
        assert verdict.explanation


def test_completed_launch_is_unknown_for_want_of_recorder(folder, tmp_path):
    """Contract: all checks that need no recorder are PASS, and the verdict names the commands that install a
    recorder."""
    path, original = _original("rank-restarted-by-torchrun", folder)
    assert original.verdict == "PASS"
    bundle = attached(path, tmp_path / "bundle", picture=True)
    verdict = judge(bundle)
    results = {check.name: check.result for check in verdict.checks}
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "unification.not_recorded")
    assert {results[name] for name in ("admission", "scheduling", "image", "rank-exit", "completed")} == {
        "PASS"
    }
    assert any("harness recorder install --namespace" in line for line in verdict.next)
