"""A reader who stops reading early, as `head` does, causes no error, no message and no other verdict."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import bundles
import pytest

from harness.judge import judge

HARNESS = [sys.executable, "-c", "from harness.cli.main import main; main()"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs/passed, runs/failed and runs/open, still written; logs fill a pipe."""
    folder = tmp_path_factory.mktemp("output")
    passed, failed, under_way = bundles.healthy(), bundles.healthy(), bundles.healthy()
    bundles.crash(failed, 1)
    under_way.manifest = under_way.manifest.model_copy(update={"ended_at": None})
    for name, job in (("passed", passed), ("failed", failed), ("open", under_way)):
        bundle = job.write(folder / "runs" / f"20261121T050000Z-{name}")
        (bundle.path / "verdict.json").write_text(judge(bundle).model_dump_json())
        for log in (bundle.path / "logs").iterdir():
            with log.open("a") as file:
                file.writelines(f"2026-11-21T05:00:08.{n:09}Z line {n}\n" for n in range(3000))
    return folder


def unread(runs: Path, *arguments: str, **streams: int) -> subprocess.CompletedProcess[str]:
    """A command whose stdout nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        given = {"stdout": writer, "stderr": subprocess.PIPE} | streams
        return subprocess.run([*HARNESS, *arguments], cwd=runs, text=True, timeout=60, check=False, **given)
    finally:
        os.close(writer)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("logs passed", 0),
        ("logs open --follow", 0),
        ("runs", 0),
        ("show failed", 1),
        ("judge failed --json", 1),
        ("diff passed failed", 1),
        ("summary runs/20261121T050000Z-failed", 0),
        ("report --help", 0),
    ],
)
def test_the_exit_code_is_what_it_would_be(runs: Path, command: str, code: int) -> None:
    """Contract: the command's own exit code, and no message, not even from Python's last flush."""
    done = unread(runs, *command.split())
    messages = [line for line in done.stderr.splitlines() if not line.startswith("following ")]
    assert (done.returncode, messages) == (code, [])


def test_an_error_that_nobody_reads(runs: Path) -> None:
    """Contract: `harness … 2>&1 | head` keeps the exit code too."""
    assert unread(runs, "judge", "nowhere", stderr=subprocess.STDOUT).returncode == 64
