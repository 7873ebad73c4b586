"""What a pod's supervisor is told, and what it says. Its files are of this pod alone.

    supervisor.lock   held for as long as the supervisor lives
    status.json       what the supervisor does: state, generation, tree, exit code, the hold it obeys
    patience.json     until when a command that fails waits for new code, in place of ending the pod
    hold.json         until when no command runs; a switch that never comes does not stop a job for ever
    generation.json   the generation and tree to run

Times are seconds of the kernel's monotonic clock: the same for all processes of a pod.
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
"""A supervisor has so long to stop its command: over its grace (supervisor.py)."""
LOOK_SECONDS = 0.02


class Control:
    """The folder through which a receiver and a supervisor of the same pod talk."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        os.makedirs(folder, exist_ok=True)

    def _at(self, name: str) -> str:
        return os.path.join(self.folder, name)

    # -- the receiver's side ---------------------------------------------------------------------------
    def supervised(self) -> bool:
        """Return whether a supervisor lives."""
        try:
            with open(self._at("supervisor.lock"), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        return False

    def status(self) -> dict[str, Any]:
        """Return what the supervisor last said; empty when there is none."""
        return read_json(self._at("status.json")) if self.supervised() else {}

    def be_patient(self, seconds: float) -> None:
        write_json(self._at("patience.json"), {"until": time.monotonic() + seconds})

    def hold(self) -> bool:
        """Stop the command and wait until it has ended. Return whether there is a supervisor at all."""
        if not self.supervised():
            return False
        token = os.urandom(8).hex()
        write_json(self._at("hold.json"), {"token": token, "until": time.monotonic() + HOLD_SECONDS})
        until = time.monotonic() + STOP_SECONDS
        while self.supervised():
            seen = self.status()
            if seen.get("held") == token:
                return True
            if time.monotonic() > until:
                raise Refused(f"the command did not stop within {STOP_SECONDS:g} s: {seen}")
            time.sleep(LOOK_SECONDS)
        raise Refused("the supervisor ended while the command was to be stopped")

    def start(self, generation: int, tree: str) -> None:
        """Have the supervisor start its command in the tree that is current now."""
        write_json(self._at("generation.json"), {"generation": generation, "tree": tree})
        self.release()

    def release(self) -> None:
        """Have the supervisor go on with what is current: the switch it was held for does not come."""
        try:
            os.unlink(self._at("hold.json"))
        except FileNotFoundError:
            return

    # -- the supervisor's side -------------------------------------------------------------------------
    def supervise(self) -> IO[bytes]:
        """Return the lock that says that a supervisor lives. Raises Refused when there is one."""
        file = open(self._at("supervisor.lock"), "wb")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise Refused(f"another supervisor runs with {self.folder}") from None
        return file

    def say(self, **status: Any) -> None:
        write_json(self._at("status.json"), status)

    def held(self) -> str:
        """Return the token of the hold that is to be obeyed; empty when there is none."""
        hold = read_json(self._at("hold.json"))
        return str(hold["token"]) if hold and time.monotonic() < hold["until"] else ""

    def patient(self) -> bool:
        return time.monotonic() < float(read_json(self._at("patience.json")).get("until", 0))

    def wanted(self) -> dict[str, Any]:
        """Return generation and tree that are to run; empty before the first sync into this pod."""
        return read_json(self._at("generation.json"))
