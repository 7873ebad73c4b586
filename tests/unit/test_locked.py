"""harness.locked: one holder at a time, and a lock that outlives nobody."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from harness.locked import locked

HOLD = "import sys; from pathlib import Path; from harness.locked import locked\n" + (
    "with locked(Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()\n"
)


def test_a_second_one_waits_until_the_first_process_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "made" / "lock"
    waiting, got = threading.Event(), threading.Event()

    def take() -> None:
        with locked(path, waiting.set):
            got.set()

    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        second = threading.Thread(target=take)
        second.start()
        assert waiting.wait(20)
        assert not got.is_set()
        holder.kill()
    second.join(20)
    assert got.is_set()


def test_nobody_is_told_to_wait_for_a_free_lock(tmp_path: Path) -> None:
    told: list[bool] = []
    for _ in range(2):
        with locked(tmp_path / "lock", lambda: told.append(True)):
            pass
    assert told == []
