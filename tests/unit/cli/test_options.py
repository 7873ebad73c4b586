"""Options that several commands share mean the same everywhere."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.cli.options import progress
from harness.faults.recorded_bundles import extract
from harness.reference.commands import commands

ROOT = Path(__file__).parents[3]
WITH_PROGRESS = {
    "run",
    "up",
    "down",
    "pause",
    "resume",
    "doctor",
    "accept",
    "train",
    "netcheck",
    "shell",
    "preflight",
    "konduktor",
    "faults",
    "programs",
    "soak",
    "bisect",
    "matrix",
    "attach",
    "images build",
    "torchrun submit",
    "torchrun sync",
}
SHARED = (
    *("--quiet", "--json", "--cluster-name", "--workers", "--kubernetes", "--images", "--runs-dir"),
    *("--kubeconfig", "--context", "--keep-cluster", "--keep-runs", "--wait", "--tracker", "--parallel"),
)


def test_every_command_with_progress_can_be_quiet() -> None:
    """Contract: `-q` and `--quiet` are options of every command that shows progress, and of no other."""
    quiet = {
        n for n, c in commands().items() if any("-q" in p.opts and "--quiet" in p.opts for p in c.params)
    }
    assert quiet == WITH_PROGRESS


@pytest.mark.parametrize("option", SHARED)
def test_a_shared_option_has_one_meaning(option: str) -> None:
    """Contract: the same help in each command that has it. `attach --wait` waits for a job of others."""
    meanings = defaultdict(list)
    for name, command in commands().items():
        if (name, option) == ("attach", "--wait"):
            continue
        for parameter in (p for p in command.params if option in p.opts):
            meanings[parameter.help].append(name)
    assert len(meanings) == 1, dict(meanings)


def test_quiet_progress_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    progress(True)("unseen")
    progress(False)("seen")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "] seen\n" in captured.err
    assert "unseen" not in captured.err


def test_json_says_where_bundle_and_report_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Contract: absolute paths beside the verdict; null for a missing report."""
    bundle = extract(ROOT / "tests/recorded/client-drop-point.tar.xz", tmp_path / "bundle")
    for report, expected in (("", None), ("<html>", str(bundle / "report.html"))):
        if report:
            (bundle / "report.html").write_text(report)
        else:
            (bundle / "report.html").unlink(missing_ok=True)
        with pytest.raises(SystemExit) as ended:
            main(["judge", str(bundle), "--json"])
        document = json.loads(capsys.readouterr().out)
        assert (ended.value.code, document["verdict"]) == (1, "FAIL")
        assert (document["bundle"], document["report"]) == (str(bundle), expected)
