"""Define the files through which a receiver controls a pod's supervisor. Pods never share these files.

    supervisor.lock   locked while the supervisor runs
    status.json       the supervisor's state, generation and tree, the exit code, and the token of the hold
    patience.json     the time until which a failed command waits for new code instead of ending the pod
    hold.json         the token of a hold, during which no command runs, and the time at which the hold ends
    generation.json   the generation and tree to run

Times are seconds on the kernel's monotonic clock, which is the same for all processes in a pod.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import IO, Any

from harness.torchrun_sync.pod.entries import Refused
from harness.torchrun_sync.pod.files import read_json, write_json

HOLD_SECONDS = 60.0
STOP_SECONDS = 40.0
"""How long a receiver waits for the supervisor to stop the command, in seconds. This is longer than
GRACE_SECONDS in supervisor.py."""
POLL_SECONDS = 0.02


class Control:
    """The folder with a pod's control files."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        os.makedirs(folder, exist_ok=True)

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    # -- called by the receiver ------------------------------------------------------------------------
    def supervised(self) -> bool:
        """Return whether a supervisor is running."""
        try:
            with open(self._path("supervisor.lock"), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        return False

    def status(self) -> dict[str, Any]:
        """Return the last status that the supervisor wrote, or {} if no supervisor is running."""
        return read_json(self._path("status.json")) if self.supervised() else {}

    def be_patient(self, seconds: float) -> None:
        write_json(self._path("patience.json"), {"until": time.monotonic() + seconds})

    def hold(self) -> bool:
        """Make the supervisor stop its command, and wait until the command has ended.

        Return False if no supervisor is running.

        Raises Refused if the command does not stop, or if the supervisor exits.
        """
        if not self.supervised():
            return False
        token = os.urandom(8).hex()
        write_json(self._path("hold.json"), {"token": token, "until": time.monotonic() + HOLD_SECONDS})
        deadline = time.monotonic() + STOP_SECONDS
        while self.supervised():
            status = self.status()
            if status.get("held") == token:
                return True
            if time.monotonic() > deadline:
                raise Refused(f"the command did not stop within {STOP_SECONDS:g} s: {status}")
            time.sleep(POLL_SECONDS)
        raise Refused("the supervisor exited before the command was stopped")

    def start(self, generation: int, tree: str) -> None:
        """Make the supervisor start its command with this generation and tree."""
        write_json(self._path("generation.json"), {"generation": generation, "tree": tree})
        self.release()

    def release(self) -> None:
        """End a hold, so that the supervisor runs its command again."""
        try:
            os.unlink(self._path("hold.json"))
        except FileNotFoundError:
            return

    # -- called by the supervisor ----------------------------------------------------------------------
    def supervise(self) -> IO[bytes]:
        """Acquire the supervisor's lock and return it. Raises Refused if another supervisor holds it."""
        file = open(self._path("supervisor.lock"), "wb")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise Refused(f"another supervisor is already using {self.folder}") from None
        return file

    def write_status(self, **status: Any) -> None:
        write_json(self._path("status.json"), status)

    def hold_token(self) -> str:
        """Return the token of the current hold request, or "" if there is none."""
        hold = read_json(self._path("hold.json"))
        return str(hold["token"]) if hold and time.monotonic() < hold["until"] else ""

    def patient(self) -> bool:
        return time.monotonic() < float(read_json(self._path("patience.json")).get("until", 0))

    def wanted(self) -> dict[str, Any]:
        """Return the generation and tree that the supervisor must run, or {} before this pod's first sync."""
        return read_json(self._path("generation.json"))
