"""A launch's own folder: private, and removed also after a harness that was killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.launch import _home
from harness.launchers.konduktor import Submission, konduktor_config


def test_folders_of_dead_processes_are_removed(tmp_path: Path) -> None:
    """Those of living ones stay, whoever owns them; a name that is no process's is left over too."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for pid in (dead.pid, os.getppid(), 1, "odd", 2**70):
        (tmp_path / f"launch-{pid}-x").mkdir()
    home = _home(tmp_path)
    assert (home.stat().st_mode & 0o777) == 0o700
    left = {path.name for path in tmp_path.iterdir()} - {home.name}
    assert left == {f"launch-{os.getppid()}-x", "launch-1-x"}


def test_without_proc_a_living_process_keeps_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS has no /proc."""
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda self: not str(self).startswith("/proc") and exists(self))
    (tmp_path / f"launch-{os.getpid()}-x").mkdir()
    _home(tmp_path)
    assert (tmp_path / f"launch-{os.getpid()}-x").is_dir()


@pytest.mark.parametrize("request_", [None, "510m"])
def test_a_lowered_request_leaves_the_limit(request_: str | None) -> None:
    config = konduktor_config(Submission("ns", "0badcafe", "", {"MY_TOKEN": ("pluto", "MY_TOKEN")}, request_))
    container = config["kubernetes"]["pod_config"]["spec"]["containers"][0]
    assert container.get("resources") == ({"requests": {"cpu": request_}} if request_ else None)
    reference = {"secretKeyRef": {"name": "pluto", "key": "MY_TOKEN"}}
    assert container["env"] == [{"name": "MY_TOKEN", "valueFrom": reference}]
