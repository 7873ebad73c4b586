"""Texts of pods, logs and Events cannot control the terminal of the person who reads a verdict."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from harness.cli.options import TimedProgress
from harness.cli.torchrun.jobs import table
from harness.core.terminal_text import printable
from harness.evidence.schema.bundle import Verdict
from harness.report.terminal import verdict as whole
from harness.report.terminal import why
from harness.report.terminal.console import Console

CLEAR = "\x1b[2J\x1b]0;title\x07 \x9b31m \x7f \u202egnp.exe"
"""Clears the screen, sets a title, and shows a text backwards (kubernetes/kubernetes #101695, #107617)."""
CONTROLS = set(map(chr, [*range(9), *range(11, 32), *range(127, 160), 0x202E]))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    log = tmp_path / "logs" / "pod-0-main.log"
    log.parent.mkdir()
    log.write_text(f"2026-11-29T12:00:00Z {CLEAR}\n")
    return tmp_path


def verdict() -> Verdict:
    return Verdict(
        verdict="FAIL",
        cause="rank.failed",
        ranks=[0],
        explanation=f"rank 0 ended: {CLEAR}",
        evidence=["logs/pod-0-main.log:1"],
        consequences=[CLEAR],
        next=[f"# {CLEAR}"],
    )


@pytest.mark.parametrize("width", [40, 120])
def test_a_verdict_shows_control_characters(bundle: Path, width: int) -> None:
    """Contract: every text of a verdict, and each quoted log line, is printed without control characters."""
    for render in (
        lambda console: why.render(verdict(), bundle, console),
        lambda console: whole.render(verdict(), [], bundle, console),
    ):
        console = Console(file=io.StringIO(), width=width)
        render(console)
        printed = console.file.getvalue()  # type: ignore[attr-defined]
        assert not CONTROLS & set(printed), printed
        assert "␛[2J" in printed


def test_a_console_keeps_its_own_colours() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=80)
    table = Table("name")
    table.add_row(Text(CLEAR, style="red"))
    console.print(table)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[31m" in printed
    assert "\x1b[2J" not in printed
    assert "\x1b]0" not in printed


def test_progress_and_the_table_of_jobs_show_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """Contract: a newline in a job's message cannot fake a row of the table."""
    TimedProgress()(f"reading run {CLEAR} ✓")
    assert not CONTROLS & set(capsys.readouterr().err)
    status = {"phase": "Failed", "message": f"{CLEAR}\nother  q  Succeeded"}
    printed = table([{"metadata": {"name": "a"}, "spec": {"queue": "q"}, "status": status}])
    assert not CONTROLS & set(printed)
    assert len(printed.splitlines()) == 2


def test_a_printable_text_is_not_changed() -> None:
    text = "✓ PASS\t0.5 µs – 日本\n  → next"
    assert printable(text) == text
