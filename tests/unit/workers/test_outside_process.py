"""What a rank's process records of itself: real programs, run as torchrun would start them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from mounting import lay_out

from harness.evidence.process_records import ProcessEnd, ProcessLine, ProcessStart, decode
from harness.launch import recorder

NONCE = "0123abcd"
RANK = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "0"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return lay_out(recorder.MOUNTED, tmp_path / "recorder")


def ran(folder: Path, program: str, **env: str) -> tuple[int, list[ProcessLine], str]:
    """Run a program, with its output in a file. Return its exit code, what it recorded, and its output."""
    log = folder.parent / "log"
    log.touch()
    given = {"PYTHONPATH": str(folder), "HARNESS_NONCE": NONCE, "HARNESS_LOG": str(log), **RANK, **env}
    given = {name: value for name, value in given.items() if value}
    done = subprocess.run(
        [sys.executable, "-c", program], env=given, capture_output=True, text=True, check=False
    )
    events = [event for line in log.read_text().splitlines() for event in decode(NONCE, line, "pod-0")]
    return done.returncode, events, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("program", "code", "how", "error"),
    [
        ("pass", 0, "exit", ""),
        ("import sys; sys.exit(3)", 3, "exit", ""),
        ("import sys; sys.exit('no data')", 1, "exit", ""),
        ("raise RuntimeError('boom')", 1, "exception", "RuntimeError: boom"),
        ("import os; os._exit(4)", 4, "os._exit", ""),
        ("import os\nif os.fork() == 0: os._exit(9)\nos.wait()", 0, "exit", ""),
        ("import sys\ntry: sys.exit(5)\nfinally: pass", 5, "exit", ""),
        ("exit(7)", 7, "exit", ""),
        ("quit('no data')", 1, "exit", ""),
    ],
)
def test_a_rank_records_its_end(folder: Path, program: str, code: int, how: str, error: str) -> None:
    seen, events, output = ran(folder, program)
    assert seen == code
    start, end = events
    assert isinstance(start, ProcessStart)
    assert (start.role, start.env["RANK"], start.env["WORLD_SIZE"]) == ("rank", "1", "2")
    assert isinstance(end, ProcessEnd)
    assert (end.code, end.how, end.error, end.id) == (code, how, error, start.id)
    assert "@process1" not in output
    assert "[harness]" not in output


def test_a_process_that_becomes_another_program_keeps_its_id(folder: Path) -> None:
    program = "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'import sys; sys.exit(6)'])"
    code, events, _ = ran(folder, program)
    assert code == 6
    assert [event.kind for event in events] == ["start", "end", "start", "end"]
    assert [event.how for event in events if isinstance(event, ProcessEnd)] == ["exec", "exit"]
    assert len({event.id for event in events}) == 1


def test_a_process_that_a_signal_kills_records_no_end(folder: Path) -> None:
    _, events, _ = ran(folder, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert [event.kind for event in events] == ["start"]


def test_a_process_that_is_no_rank_and_uses_no_client_records_nothing(folder: Path) -> None:
    _, events, _ = ran(folder, "pass", LOCAL_RANK="")
    assert events == []


def test_a_helper_that_a_rank_starts_records_nothing(folder: Path) -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'])"
    _, events, _ = ran(folder, program)
    assert [event.kind for event in events] == ["start", "end"]


def test_an_event_of_another_launch_is_not_taken(folder: Path) -> None:
    ran(folder, "pass")
    lines = (folder.parent / "log").read_text().splitlines()
    assert not [event for line in lines for event in decode("another", line, "pod-0")]
