"""harness.core.locks: one holder at a time, and a lock that outlives nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from harness.core.locks import acquire, in_use, inherited, locked

HOLD = "import sys; from pathlib import Path; from harness.core.locks import locked\n" + (
    "with locked(Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()\n"
)


def test_second_one_waits_until_first_process_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "made" / "lock"
    waiting, got = threading.Event(), threading.Event()

    def acquire() -> None:
        with locked(path, waiting.set):
            got.set()

    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        second = threading.Thread(target=acquire)
        second.start()
        assert waiting.wait(20)
        assert not got.is_set()
        holder.kill()
    second.join(20)
    assert got.is_set()


def test_nobody_is_told_to_wait_for_a_free_lock(tmp_path: Path) -> None:
    notices: list[bool] = []
    for _ in range(2):
        with locked(tmp_path / "lock", lambda: notices.append(True)):
            pass
    assert notices == []


def test_many_share_and_the_last_one_out_knows(tmp_path: Path) -> None:
    path = tmp_path / "users"
    assert not in_use(path)
    first, second = acquire(path, shared=True), acquire(path, shared=True)
    first.release()
    first.release()
    assert in_use(path)
    second.release()
    assert not in_use(path)


def test_a_file_that_its_holder_removes_is_nobodys_lock(tmp_path: Path) -> None:
    """Contract: a process whose awaited lock file was removed gets an exclusive lock on the new file."""
    path = tmp_path / "lock"
    first = acquire(path)
    waiting, got, ended = threading.Event(), threading.Event(), threading.Event()

    def second() -> None:
        with locked(path, waiting.set):
            got.set()
            assert ended.wait(20)

    thread = threading.Thread(target=second)
    thread.start()
    assert waiting.wait(20)
    path.unlink()
    first.release()
    assert got.wait(20)
    assert in_use(path)
    ended.set()
    thread.join(20)
    assert not in_use(path)


RUN = "import sys; from pathlib import Path; from harness.core import locks, processes\n" + (
    "with locks.locked(Path(sys.argv[1])):\n    processes.run(['sh', '-c', sys.argv[2]], timeout=60)\n"
)


def test_a_program_of_a_killed_holder_still_holds(tmp_path: Path) -> None:
    """A harness is killed while kind makes its cluster: the next one waits until kind has ended."""
    path, started, go = (tmp_path / name for name in ("lock", "started", "go"))
    os.mkfifo(started)
    os.mkfifo(go)
    script = f"echo > {started}; cat {go}"
    with subprocess.Popen([sys.executable, "-c", RUN, str(path), script]) as holder:
        started.read_text()
        holder.kill()
    assert in_use(path)
    go.write_text("")
    with locked(path):
        pass


def test_release_frees_a_lock_inherited_by_child_processes(tmp_path: Path) -> None:
    handle = acquire(tmp_path / "lock")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=inherited()) as program:
        handle.release()
        assert not in_use(tmp_path / "lock")
        program.communicate()
