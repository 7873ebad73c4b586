"""The write lock of a store.

Only one process at a time writes to a store, even if several pods mount its folder.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from typing import IO

from harness.torchrun_sync.pod.entries import Refused
from harness.workers.own_processes import OwnProcesses


class Writer:
    """The lock on the file ROOT/lock. The kernel releases the lock when the process that holds it exits."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._file: IO[str] | None = None

    @property
    def writes(self) -> bool:
        """Return whether this process holds the lock."""
        return self._file is not None

    def lock(self, session: str, seconds: float) -> None:
        """Acquire the lock. Raises Refused if another session holds it for longer than `seconds`.

        An earlier receiver of the same session that still holds the lock is killed, because its connection is
        lost.
        """
        if self._file is not None:
            return
        file = open(os.path.join(self.root, "lock"), "a+", encoding="utf-8")  # noqa: SIM115
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                file.seek(0)
                holder, _, pid = file.read().partition(" ")
                if holder == session and pid.isdigit():
                    _end(int(pid), session)
                if time.monotonic() > deadline:
                    file.close()
                    raise Refused(f"another sync kept {self.root} locked for over {seconds:g} s") from None
                time.sleep(0.05)
        file.truncate(0)
        file.write(f"{session} {os.getpid()}")
        file.flush()
        self._file = file

    def unlock(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _end(pid: int, session: str) -> None:
    """Kill an earlier receiver of the session in this container, unless its PID now belongs to another
    process."""
    if not OwnProcesses().has(pid):
        return
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            is_receiver = session.encode() in file.read()
        if is_receiver and pid != os.getpid():
            os.kill(pid, signal.SIGKILL)
    except OSError:
        return
