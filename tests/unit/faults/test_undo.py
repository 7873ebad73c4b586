"""Undoing: always, in every way that the injector can end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.core.errors import HarnessError
from harness.faults import undo
from harness.faults.undo import Command, replay, undone


def marker(path: Path) -> Command:
    return Command(["touch", str(path)])


def test_a_fault_is_undone_even_if_its_block_raises(tmp_path):
    """Contract: undone once the block is over, and the journal is gone."""
    with undone([marker(tmp_path / "a")], tmp_path / "j.json"):
        assert (tmp_path / "j.json").exists(), "written before anything is injected"
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a").exists()
    with pytest.raises(KeyboardInterrupt), undone([marker(tmp_path / "b")], tmp_path / "j.json"):
        raise KeyboardInterrupt
    assert (tmp_path / "b").exists()
    assert not (tmp_path / "j.json").exists()


def test_failed_undo_is_reported_and_keeps_its_journal(tmp_path, monkeypatch):
    """Contract: the other commands are run all the same; `replay` tries again."""
    monkeypatch.setattr(undo, "stop_after_delay", lambda _: undo_once)
    blocked = tmp_path / "dir" / "x"
    with (
        pytest.raises(HarnessError, match="could not be undone"),
        undone([marker(blocked), marker(tmp_path / "after")], tmp_path / "j.json"),
    ):
        pass
    assert (tmp_path / "after").exists()
    assert (tmp_path / "j.json").exists()
    blocked.parent.mkdir()
    assert replay(tmp_path / "j.json") == []
    assert blocked.exists()
    assert not (tmp_path / "j.json").exists()


def undo_once(_: object) -> bool:
    return True


def test_what_another_injector_undoes_itself_is_left_to_it(tmp_path):
    """Contract: a second `harness faults` undoes what was left, and not what the first one injects now."""
    with undone([marker(tmp_path / "a")], tmp_path / "j.json"):
        code = "import sys; from pathlib import Path; from harness.faults.undo import replay; "
        code += "sys.exit(len(replay(Path(sys.argv[1]))))"
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "j.json")], check=True)
        assert (tmp_path / "j.json").exists()
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a").exists()


def test_injector_that_is_killed_is_outlived_by_its_watchdog(tmp_path):
    """Contract: SIGKILL leaves no chance to the injector; the fault is undone all the same."""
    code = (
        "import time; from pathlib import Path; from harness.faults.undo import Command, undone\n"
        f"undo = [Command(['touch', {str(tmp_path / 'undone')!r}])]\n"
        f"with undone(undo, Path({str(tmp_path / 'j.json')!r})):\n"
        "    print('injected', flush=True); time.sleep(60)\n"
    )
    injector = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert injector.stdout is not None
    assert injector.stdout.readline() == "injected\n"
    injector.send_signal(signal.SIGKILL)
    injector.wait()
    deadline = time.monotonic() + 20
    while (tmp_path / "j.json").exists():
        assert time.monotonic() < deadline, "the watchdog did nothing"
        time.sleep(0.02)
    assert (tmp_path / "undone").exists()


def test_journal_that_is_not_there_is_nothing_to_do(tmp_path):
    """Contract: two may replay at once; the second finds nothing."""
    assert replay(tmp_path / "none.json") == []
    (tmp_path / "j.json").write_text(json.dumps([{"argv": ["true"], "stdin": None}]))
    assert replay(tmp_path / "j.json") == []
