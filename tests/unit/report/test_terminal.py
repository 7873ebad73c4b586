"""The summary of one verdict on a terminal, and in a pipe."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from harness.evidence.schema.bundle import Check, Verdict
from harness.report.terminal import verdict as terminal


def shown(verdict: Verdict, bundle: Path, width: int = 60) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    terminal.render(verdict, [], bundle, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_what_is_to_be_typed_stays_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: a command can be copied, with the bundle as the user called it; advice is told apart."""
    monkeypatch.chdir(tmp_path)
    name = f"runs/{'long' * 30}"
    command = f"harness logs {tmp_path / name} --rank 1"
    verdict = Verdict(
        verdict="FAIL",
        explanation="x",
        evidence=["truth/1.jsonl:7"],
        next=[command, "# look at it " + "a " * 60],
    )
    lines = shown(verdict, Path(name))
    assert f"next      harness logs {name} --rank 1" in lines
    assert f"evidence  {name}/truth/1.jsonl:7" in lines
    assert any(line.startswith("advice    look at it a a") for line in lines)


def test_the_verdict_comes_last(tmp_path: Path) -> None:
    """Contract: checks first; then the verdict and what to type, which a terminal of any height shows."""
    checks = [Check(name="rank-exit", result="FAIL", cause="rank.killed", explanation="Killed")]
    verdict = Verdict(
        verdict="FAIL", cause="rank.killed", explanation="Killed", next=["kubectl"], checks=checks
    )
    lines = [" ".join(line.split()) for line in shown(verdict, tmp_path)]
    places = [lines.index("✗ rank-exit see below"), lines.index("next kubectl")]
    (title,) = [place for place, line in enumerate(lines) if "✗ FAIL" in line]
    assert places[0] < title < places[1]


def test_unknown_checks_with_one_reason_share_a_row(tmp_path: Path) -> None:
    """Contract: the reason is shown once, with every name; checks with a cause keep a row of their own."""
    checks = [
        Check(name="a", result="UNKNOWN", explanation="Not judged"),
        Check(name="b", result="PASS", explanation="Not judged"),
        Check(name="c", result="UNKNOWN", explanation="Not judged"),
        Check(name="d", result="UNKNOWN", cause="run.interrupted", explanation="Not judged"),
        Check(name="e", result="UNKNOWN", explanation="alone"),
    ]
    lines = shown(Verdict(verdict="UNKNOWN", explanation="x", checks=checks), tmp_path)
    rows = [" ".join(line.split()) for line in lines]
    rows = [row for row in rows if row.endswith(("Not judged", "a, c", "alone"))]
    assert rows == ["? 2 checks Not judged: a, c", "✓ b Not judged", "? d Not judged", "? e alone"]
