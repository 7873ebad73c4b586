"""A run has one writer: a second launch is refused, and a stale lock is taken over."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.workers.training import run_lock
from harness.workers.training.checkpoint import Unusable
from harness.workers.training.run_lock import LOCK, RunLock

ROOT = Path(__file__).parents[4]
HOLDER = """
import sys
from pathlib import Path
from harness.workers.training import run_lock
from harness.workers.training.checkpoint import Unusable
run_lock.BEAT_SECONDS, run_lock.POLL_SECONDS, run_lock.STALE_SECONDS = 0.02, 0.01, float(sys.argv[2])
lock = run_lock.RunLock(Path(sys.argv[1]), lambda text: None)
try:
    lock.acquire()
    print("held", flush=True)
except Unusable as error:
    print(error, flush=True)
sys.stdin.readline()
try:
    print(lock.lost() or "kept", flush=True)
except Unusable as error:
    print(error, flush=True)
sys.stdin.readline()
lock.release()
"""


class Holder:
    """A process that takes the lock of a run."""

    def __init__(self, run: Path, launch: str, stale: float = 30.0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(run), str(stale)],
            env={"PYTHONPATH": str(ROOT), "HARNESS_NONCE": launch},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """Return the next line that the process prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def enter(self) -> None:
        """Let the process go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Kill the process, and wait for its end."""
        self.process.kill()
        self.process.wait()


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable[..., Holder]]:
    """Return what starts a process that takes the lock of the run `tmp_path`."""
    holders: list[Holder] = []

    def started(launch: str = "", **more: float) -> Holder:
        holders.append(Holder(tmp_path, launch, **more))
        return holders[-1]

    yield started
    for each in holders:
        each.kill()


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of messages, and shorten the waits. Staleness counts polls and not seconds."""
    monkeypatch.setattr(run_lock, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(run_lock, "BEAT_SECONDS", 0.02)
    monkeypatch.delenv("HARNESS_NONCE", raising=False)
    return []


def acquired(run: Path, messages: list[str]) -> RunLock:
    lock = RunLock(run, messages.append)
    lock.acquire()
    return lock


def of_another_machine(run: Path, **more: object) -> None:
    """Rewrite the lock as if its owner ran on another machine."""
    owner = json.loads((run / LOCK).read_text()) | {"process": "boot/pid:[1]/1/1", "host": "node-7"} | more
    (run / LOCK).write_text(json.dumps(owner))


def test_second_launch_is_refused_with_first_ones_name(
    tmp_path: Path, hold: Callable[..., Holder], messages: list[str]
) -> None:
    first = hold("n1")
    assert first.line() == "held"
    with pytest.raises(Unusable) as refused:
        acquired(tmp_path, messages)
    assert f"{tmp_path} is in use by process {first.process.pid} on " in str(refused.value)
    assert " of launch n1, since 2" in str(refused.value)
    first.enter()
    assert first.line() == "kept"
    first.enter()
    first.process.wait()
    assert not (tmp_path / LOCK).exists()
    acquired(tmp_path, messages).release()
    assert messages == []


def test_owner_that_was_killed_here_is_followed_at_once(
    tmp_path: Path, hold: Callable[..., Holder], messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: torchrun's restarts of the ranks of one pod do not wait for a heartbeat."""
    first = hold()
    assert first.line() == "held"
    first.kill()
    monkeypatch.setattr(run_lock.time, "sleep", lambda _: pytest.fail("it waited"))
    acquired(tmp_path, messages).release()
    assert "is taken over from process" in messages[0]


def test_later_attempt_ends_earlier_one_without_waiting(
    tmp_path: Path, hold: Callable[..., Holder], messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: a pod that was replaced, or a rank whose node is cut off, does not stop its own launch."""
    first = hold("n1")
    assert first.line() == "held"
    monkeypatch.setenv("HARNESS_NONCE", "n1")
    monkeypatch.setattr(run_lock.time, "sleep", lambda _: pytest.fail("it waited"))
    lock = acquired(tmp_path, messages)
    first.enter()
    assert " of launch n1, since " in first.line()
    assert "taken over" not in "".join(messages)
    assert lock.lost() == ""
    lock.release()


def test_lock_without_heartbeat_is_taken_over_with_message(
    tmp_path: Path, hold: Callable[..., Holder], messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = hold("n1")
    assert first.line() == "held"
    first.kill()
    of_another_machine(tmp_path, since="2999-01-01T00:00:00Z")  # its clock does not matter
    monkeypatch.setattr(run_lock, "STALE_SECONDS", 0.1)
    acquired(tmp_path, messages).release()
    assert f"the lock of {tmp_path} is taken over from process {first.process.pid} on node-7" in messages[-1]
    assert not (tmp_path / LOCK).exists()


def test_slow_owner_notices_that_its_lock_was_taken_over(
    tmp_path: Path, hold: Callable[..., Holder], messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: a wrong guess about a slow machine ends one of the two writers before it writes."""
    first = hold("n1")
    assert first.line() == "held"
    owner = run_lock.Owner(tmp_path.name, launch="n2", host="node-7")
    (tmp_path / "partial").write_text(json.dumps(run_lock.asdict(owner)))
    (tmp_path / "partial").replace(tmp_path / LOCK)
    first.enter()
    assert first.line().startswith(f"{tmp_path} was taken over by process")
    first.enter()
    first.process.wait()
    assert json.loads((tmp_path / LOCK).read_text())["token"] == owner.token


def test_lock_copied_with_its_run_does_not_count(tmp_path: Path, messages: list[str]) -> None:
    (tmp_path / "a").mkdir()
    lock = acquired(tmp_path / "a", messages)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / LOCK).write_bytes((tmp_path / "a" / LOCK).read_bytes())
    acquired(tmp_path / "b", messages).release()
    lock.release()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b'{"run": "a"}'])
def test_a_file_without_an_owner_is_taken_over(
    content: bytes, tmp_path: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / LOCK).write_bytes(content)
    monkeypatch.setattr(run_lock, "STALE_SECONDS", 0.05)
    acquired(tmp_path, messages).release()
    assert "names no owner" in messages[-1]


def test_a_removed_lock_is_created_again(
    tmp_path: Path, hold: Callable[..., Holder], messages: list[str]
) -> None:
    first = hold("n1")
    assert first.line() == "held"
    (tmp_path / LOCK).unlink()
    while not (tmp_path / LOCK).exists():
        run_lock.time.sleep(0.01)
    with pytest.raises(Unusable, match="of launch n1"):
        acquired(tmp_path, messages)


@pytest.mark.parametrize("stale", [False, True])
def test_of_several_launches_at_one_moment_one_writes(
    stale: bool, tmp_path: Path, hold: Callable[..., Holder]
) -> None:
    """Contract: with a stale lock or without, no two of them believe to hold the lock at a checkpoint."""
    if stale:
        owner = run_lock.Owner(tmp_path.name, process="boot/pid:[1]/1/1", launch="n0")
        (tmp_path / LOCK).write_text(json.dumps(run_lock.asdict(owner)))
    holders = [hold(f"n{number}", stale=0.2) for number in range(1, 5)]
    first = [each.line() for each in holders]
    assert "held" in first
    for each in holders:
        each.enter()
    kept = [
        each for each, line in zip(holders, first, strict=True) if each.line() == "kept" and line == "held"
    ]
    assert len(kept) == 1


def test_a_folder_in_place_of_the_lock_is_refused(tmp_path: Path, messages: list[str]) -> None:
    """Contract: one sentence, and not an error of the file system after half a minute."""
    (tmp_path / LOCK).mkdir()
    with pytest.raises(Unusable, match="expected the file that locks the run, found a folder"):
        RunLock(tmp_path, messages.append).acquire()
