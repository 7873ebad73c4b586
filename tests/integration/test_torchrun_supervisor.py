"""The supervisor as a real process: it runs one command, returns its exit code, and restarts it with new
code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from sync_processes import Pod, pod

from harness.torchrun_sync import pod_script
from harness.torchrun_sync.channel import PodRefused
from harness.torchrun_sync.job_sync import Fleet
from harness.torchrun_sync.sender import Limits
from harness.torchrun_sync.tree import Walker

SECONDS = 60
RUN = [sys.executable, "train.py"]
SAYS = "import os, time\nopen('said', 'a').write(f'{0} ' + os.environ['TORCHRUN_GENERATION'] + '\\n')\n"
"""A program that writes its name and generation to a file in the mount."""
STAYS = "time.sleep(600)\n"


@dataclass
class Supervised:
    """A pod whose command runs under a supervisor."""

    pod: Pod
    process: subprocess.Popen[bytes]

    def said(self, lines: int) -> list[str]:
        """Wait until the programs have written this many lines, and return the lines."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            file = self.pod.mount / "said"
            found = file.read_text().splitlines() if file.exists() else []
            if len(found) >= lines:
                return found
            time.sleep(0.02)
        raise AssertionError(f"expected {lines} lines, seen {found}")

    def status(self, state: str) -> dict[str, object]:
        """Wait until the supervisor reports this state, and return its status."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            file = self.pod.control / "status.json"
            found: dict[str, object] = json.loads(file.read_text()) if file.exists() else {}
            if found.get("state") == state:
                return found
            time.sleep(0.02)
        raise AssertionError(f"expected {state}, seen {found}")


class Pods:
    """The supervised pods of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[Supervised] = []

    def start(self, command: list[str], start_seconds: float = SECONDS) -> Supervised:
        to = pod(self.folder / f"pod{len(self.made)}")
        words = pod_script.supervised(command, str(to.root), str(to.control), start_seconds=start_seconds)
        process = subprocess.Popen(words, cwd=to.mount, stderr=subprocess.PIPE)
        self.made.append(Supervised(to, process))
        self.made[-1].status("waiting")
        return self.made[-1]

    def fleet(self) -> Fleet:
        limits = Limits(connect=SECONDS, response=SECONDS, stage=SECONDS)
        return Fleet({f"pod-{index}": each.pod.open for index, each in enumerate(self.made)}, limits)


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    made = Pods(tmp_path)
    yield made
    for each in made.made:
        if each.process.poll() is None:
            each.process.terminate()
        each.process.communicate(timeout=SECONDS)
        each.pod.end()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    top = tmp_path / "here"
    top.mkdir()
    return top


def write(here: Path, name: str, rest: str) -> None:
    (here / "train.py").write_text(SAYS.replace("{0}", name) + rest)


@pytest.mark.parametrize(
    ("end", "code"), [("", 0), ("raise SystemExit(7)", 7), ("os.kill(os.getpid(), 9)", 137)]
)
def test_the_exit_code_is_the_command_s(pods: Pods, here: Path, end: str, code: int) -> None:
    """Contract: the supervisor exits with the command's exit code, or with 128 + the signal number."""
    write(here, "one", end)
    running = pods.start(RUN)
    with pods.fleet() as job:
        job.sync(Walker(here))
    assert running.process.wait(SECONDS) == code


def test_new_code_runs_in_all_pods_with_one_generation(pods: Pods, here: Path) -> None:
    """Contract: the old programs have ended in all pods before a new one starts. The pods are not
    replaced."""
    write(here, "one", STAYS)
    running = [pods.start(RUN) for _ in range(3)]
    walker = Walker(here)
    with pods.fleet() as job:
        first = job.sync(walker)
        for each in running:
            each.said(1)
        write(here, "two", "")
        second = job.sync(walker)
    assert [each.process.wait(SECONDS) for each in running] == [0, 0, 0]
    assert [each.said(2) for each in running] == [["one 1", "two 2"]] * 3
    assert (first.restarted, second.restarted, second.unsupervised) == (3, 3, 0)


def test_nothing_changed_restarts_nothing(pods: Pods, here: Path) -> None:
    """Contract: a second sync of the same folder does not restart the ranks."""
    write(here, "one", STAYS)
    running = pods.start(RUN)
    with pods.fleet() as job:
        job.sync(Walker(here))
        before = running.status("running")
        assert job.sync(Walker(here)).restarted == 0
    assert running.status("running") == before
    assert running.said(1) == ["one 1"]


def test_processes_of_other_sessions_are_stopped_too(pods: Pods, here: Path) -> None:
    """Contract: torchrun starts its ranks in separate sessions, but none of them continues to run old
    code."""
    write(
        here,
        "one",
        "import signal, subprocess, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "rank = 'import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)'\n"
        "child = subprocess.Popen([sys.executable, '-c', rank], start_new_session=True)\n"
        "open('pids', 'w').write(f'{os.getpid()} {child.pid}\\n')\n"
        "open('said', 'a').write('ready\\n')\n" + STAYS,
    )
    running = pods.start(RUN)
    with pods.fleet() as job:
        job.sync(Walker(here))
        running.said(2)
        old = [int(pid) for pid in (running.pod.mount / "pids").read_text().split()]
        assert all(psutil.pid_exists(pid) for pid in old)
        write(here, "two", "")
        job.sync(Walker(here))
    assert running.process.wait(SECONDS) == 0
    assert not any(psutil.pid_exists(pid) for pid in old)


def test_command_that_fails_waits_while_somebody_may_repair_it(pods: Pods, here: Path) -> None:
    """Contract: with --watch, an error in the code does not end the pods, and the next code runs in them."""
    write(here, "wrong", "raise SystemExit(3)")
    running = pods.start(RUN)
    walker = Walker(here)
    with pods.fleet() as job:
        job.sync(walker, patience=SECONDS * 10)
        assert running.status("failed")["code"] == 3
        write(here, "right", "")
        job.sync(walker, patience=SECONDS * 10)
    assert running.process.wait(SECONDS) == 0
    assert running.said(2) == ["wrong 1", "right 2"]


def test_without_a_watcher_the_command_exit_code_counts(pods: Pods, here: Path) -> None:
    """Contract: if the watcher has exited, the pod ends with the command's exit code."""
    write(here, "wrong", "raise SystemExit(3)")
    running = pods.start(RUN)
    with pods.fleet() as job:
        job.sync(Walker(here), patience=SECONDS * 10)
        running.status("failed")
        assert job.patience(0).keys() == {"pod-0"}  # The state is empty once the supervisor has ended.
    assert running.process.wait(SECONDS) == 3


def test_when_one_pod_cannot_the_others_go_on(pods: Pods, here: Path) -> None:
    """Contract: if one pod cannot switch to the new code, the commands that were stopped restart with the old
    code."""
    write(here, "one", STAYS)
    running = [pods.start(RUN) for _ in range(2)]
    with pods.fleet() as job:
        job.sync(Walker(here))
        for each in running:
            each.said(1)
        write(here, "two", "")
        sender = job._senders["pod-1"]

        def refuse() -> bool:
            raise PodRefused("pod-1: refused by the test")

        sender.hold = refuse  # type: ignore[method-assign]
        with pytest.raises(PodRefused, match="by the test"):
            job.sync(Walker(here))
    assert running[0].said(2)[:2] == ["one 1", "one 1"]
    assert running[1].said(1) == ["one 1"]
    assert "one" in (running[0].pod.mount / "train.py").read_text()


def test_a_pod_without_code_says_how_it_gets_some(pods: Pods) -> None:
    """Contract: after its time limit, the pod exits with a specific exit code and a message that explains
    what to do."""
    running = pods.start(RUN, start_seconds=0.2)
    assert running.process.wait(SECONDS) == 75
    assert running.process.stderr is not None
    assert b"harness torchrun sync" in running.process.stderr.read()


def test_a_pod_that_finds_a_tree_starts_with_it(pods: Pods, here: Path) -> None:
    """Contract: if the volume is kept, the next pod needs no sync, and has the same generation."""
    write(here, "one", "")
    running = pods.start(RUN)
    with pods.fleet() as job:
        job.sync(Walker(here))
    assert running.process.wait(SECONDS) == 0
    (running.pod.control / "generation.json").unlink()
    words = pod_script.supervised(RUN, str(running.pod.root), str(running.pod.control))
    assert subprocess.run(words, check=False, timeout=SECONDS).returncode == 0
    assert running.said(2) == ["one 1", "one 1"]


def test_sigterm_reaches_the_command_which_ends_as_it_likes(pods: Pods, here: Path) -> None:
    """Contract: when the pod is stopped, a training can save its state, and its exit code becomes the
    pod's."""
    write(
        here,
        "one",
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))\n"
        "open('said', 'a').write('ready\\n')\n" + STAYS,
    )
    running = pods.start(RUN)
    with pods.fleet() as job:
        job.sync(Walker(here))
        running.said(2)
    os.kill(running.process.pid, signal.SIGTERM)
    assert running.process.wait(SECONDS) == 42


def test_a_program_that_is_not_there_is_named(pods: Pods, here: Path) -> None:
    """Contract: the exit code is 127, as in a shell."""
    running = pods.start(["torchrun-of-no-image"])
    with pods.fleet() as job:
        job.sync(Walker(here))
    assert running.process.wait(SECONDS) == 127


def test_a_container_s_command_comes_as_it_is() -> None:
    """Contract: Kubernetes replaces `$$` and `$(NAME)` in a container's command, so the supervisor's command
    contains no `$`."""
    words = pod_script.supervised([], "/app/.torchrun", "/dev/shm/sync")
    assert not any("$" in word for word in words)
    assert sum(map(len, words)) < 16_000
