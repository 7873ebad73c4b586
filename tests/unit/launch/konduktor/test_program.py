"""konduktor's process: begun before its files are there, used once, ended with the launch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest

from harness.core import processes
from harness.core.errors import ToolError
from harness.launch.konduktor.launch_process import Konduktor, early
from harness.settings import Settings

TELLS = """
import json, os, sys
from pathlib import Path
print(json.dumps({"words": sys.argv, "job": Path(sys.argv[-1]).read_text(), "name": __name__,
    "home": os.environ["HOME"], "pid": os.getpid(), "imported": "email.mime.text" in sys.modules,
    "path": sys.path[0]}))
sys.exit(int(Path(sys.argv[-1]).read_text() == "fails"))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A program of a Python environment, which says how it was called."""
    there = tmp_path / "bin"
    there.mkdir()
    (there / "python").symlink_to(sys.executable)
    (there / "konduktor").write_text(f"#!{sys.executable}\n{TELLS}")
    (there / "konduktor").chmod(0o755)
    monkeypatch.setattr(
        "harness.launch.konduktor.launch_process.LIBRARIES", ("email.mime.text", "no.such.library")
    )
    return there / "konduktor"


def test_a_prestarted_process_runs_konduktor_like_a_direct_start(program: Path, tmp_path: Path) -> None:
    """Contract: same words and environment, files that came after its start. A second launch starts anew."""
    with Konduktor(tmp_path / "state", program) as konduktor:
        begun = konduktor._waiting
        assert begun is not None
        konduktor.job.write_text("job")
        first, second = (json.loads(konduktor.launch(program).stdout) for _ in range(2))
        assert first.pop("pid") == begun.pid != second.pop("pid")
        assert (first.pop("imported"), second.pop("imported")) == (True, False)
        assert first.pop("path") != os.getcwd()
        del second["path"]
        assert first == second
        assert first["words"][0] == str(program)
        assert first["home"] == str(konduktor.home)
    assert not konduktor.home.exists()


def test_a_failure_of_what_was_begun_is_its_own(program: Path, tmp_path: Path) -> None:
    with Konduktor(tmp_path / "state", program) as konduktor:
        konduktor.job.write_text("fails")
        with pytest.raises(ToolError) as failed:
            konduktor.launch(program)
    assert failed.value.returncode == 1
    assert '"job": "fails"' in failed.value.output


@pytest.mark.parametrize("ending", ["block", "error", "interruption"])
def test_nothing_is_left_of_what_nobody_launched(program: Path, tmp_path: Path, ending: str) -> None:
    """Contract: process and HOME go with the block, however it ends."""
    expected = {"block": nullcontext(), "error": pytest.raises(ValueError, match="x")}
    konduktor = Konduktor(tmp_path / "state", program)
    assert konduktor._waiting is not None
    pid = konduktor._waiting.pid
    with expected.get(ending) or pytest.raises(KeyboardInterrupt, match="SIGINT"), konduktor:
        if ending == "error":
            raise ValueError("x")
        if ending == "interruption":
            processes.interrupt_all("SIGINT")
    assert not psutil.pid_exists(pid)
    assert not konduktor.home.exists()


def test_it_ends_with_a_harness_that_is_killed(program: Path, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path;"
        "from harness.launch.konduktor.launch_process import Konduktor;"
        "k = Konduktor(Path(sys.argv[1]), Path(sys.argv[2])); print(k._waiting.pid, flush=True);"
        "time.sleep(99)"
    )
    harness = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "state"), str(program)], stdout=subprocess.PIPE, text=True
    )
    assert harness.stdout is not None
    waiting = psutil.Process(int(harness.stdout.readline()))
    harness.kill()
    harness.communicate()
    gone, _ = psutil.wait_procs([waiting], timeout=30)
    assert gone


def test_without_a_program_nothing_is_begun(tmp_path: Path) -> None:
    with Konduktor(tmp_path / "state", None) as konduktor:
        assert konduktor._waiting is None
        assert (konduktor.home.stat().st_mode & 0o777) == 0o700


def test_a_non_python_program_is_not_prestarted(program: Path, tmp_path: Path) -> None:
    program.write_text("#!/bin/bash\necho called with $1\n")
    with Konduktor(tmp_path / "state", program) as konduktor:
        assert konduktor._waiting is None
        assert konduktor.launch(program).stdout == "called with --kubeconfig\n"


def test_homes_of_dead_processes_are_removed(tmp_path: Path) -> None:
    """HOMEs of living processes stay, whoever owns them. A name that is no process's is left over too."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for pid in (dead.pid, os.getppid(), os.getpid(), 1, "odd", 2**70):
        (tmp_path / f"launch-{pid}-x").mkdir(exist_ok=True)  # our parent may be 1
    with Konduktor(tmp_path, None) as konduktor:
        left = {path.name for path in tmp_path.iterdir()} - {konduktor.home.name}
    assert left == {f"launch-{os.getppid()}-x", f"launch-{os.getpid()}-x", "launch-1-x"}


def test_it_is_begun_early_for_a_job_file_alone(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: neither a manifest nor a file that is not there begins a process that nobody uses."""
    settings = Settings(state_dir=tmp_path / "state")
    monkeypatch.setattr("harness.launch.konduktor.launch_process.installed", lambda _: program)
    job, manifest = tmp_path / "job.yaml", tmp_path / "manifest.yaml"
    job.write_text("name: n")
    manifest.write_text("apiVersion: v1")
    with early(job, settings) as konduktor:
        assert konduktor is not None
        assert konduktor._waiting is not None
    for other in (manifest, tmp_path / "missing.yaml"):
        with early(other, settings) as konduktor:
            assert konduktor is None
    with early(job, Settings(state_dir=manifest)) as konduktor:  # a file is where its folder is to be
        assert konduktor is None


def test_where_it_is_not_installed_nothing_is_begun(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("name: n")
    with early(job, Settings(cache_dir=tmp_path / "cache", state_dir=tmp_path / "state")) as konduktor:
        assert konduktor is None


KEY = "-----BEGIN PRIVATE KEY-----"
WAITS = f"""
import base64, sys, time
sys.path += {sys.path!r}
from kubernetes import client, config
user = {{"name": "u", "user": {{"client-key-data": base64.b64encode({KEY.encode()!r}).decode()}}}}
cluster = {{"name": "c", "cluster": {{"server": "https://127.0.0.1:1"}}}}
context = {{"name": "x", "context": {{"cluster": "c", "user": "u"}}}}
config.load_kube_config_from_dict(
    {{"clusters": [cluster], "users": [user], "contexts": [context], "current-context": "x"}},
    client_configuration=client.Configuration(),
)
sys.stdout.write("loaded")
sys.stdout.flush()
time.sleep(600)
"""


def test_killed_process_leaves_no_key_in_temporary_folder(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: konduktor's Kubernetes client writes the client key into konduktor's own HOME."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    program.write_text(f"#!{sys.executable}\n{WAITS}")
    monkeypatch.setattr("harness.launch.konduktor.launch_process.LIBRARIES", ())
    with Konduktor(tmp_path / "state", program) as konduktor:
        waiting = konduktor._waiting
        assert waiting is not None
        assert waiting.stdin is not None
        assert waiting.stdout is not None
        konduktor.job.write_text("job")
        waiting.stdin.write("null\n")
        waiting.stdin.flush()
        assert waiting.stdout.read(6) == "loaded"
        os.kill(waiting.pid, signal.SIGKILL)
        waiting.wait()
        assert [path for path in temporary.rglob("*") if path.is_file()] == []
        assert [
            path for path in konduktor.home.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()
        ]
    assert [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()] == [
        program
    ]
