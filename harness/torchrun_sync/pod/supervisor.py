"""Run a pod's command in the tree that is switched in, and again when another one is.

    python3 … ROOT CONTROL SECONDS COMMAND…

The command runs in the mount, above ROOT, and sees TORCHRUN_GENERATION and TORCHRUN_TREE. A generation is
one number in all pods of a job: put it into the id of the rendezvous, so that ranks with other code never
meet. A hold stops the command and every process it started, also those of another session, as torchrun's
ranks are. The supervisor ends with the command's exit code, 128 and the signal's number when a signal ended
it. While somebody waits to send new code (patience), a command that failed does not end the pod: its next
code may be right.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from harness.torchrun_sync.pod.control import Control
from harness.torchrun_sync.pod.entries import Refused
from harness.torchrun_sync.pod.files import read_json
from harness.workers.own_processes import OwnProcesses

LOOK_SECONDS = 0.05
GRACE_SECONDS = 5.0
"""Between SIGTERM and SIGKILL, when new code is to run. At the pod's own end its grace period counts."""
NO_TREE, NOT_FOUND, NOT_RUN = 75, 127, 126
RUN_ID = "TORCHRUN_RUN_ID"
"""The id of the rendezvous, where the pod has one: that of each generation is another one."""
PR_SET_CHILD_SUBREAPER = 36


class Supervisor:
    """One command, in one pod."""

    def __init__(self, root: str, control: Control, command: Sequence[str]) -> None:
        self.root, self.control, self.command = os.path.abspath(root), control, command
        self.process: subprocess.Popen[bytes] | None = None
        self.code: int | None = None
        self.generation, self.tree = 0, ""
        self.state, self.token = "waiting", ""
        self.asked_to_end = False

    def run(self, start_seconds: float) -> int:
        """Return the exit code, once the command has ended for good."""
        signal.signal(signal.SIGTERM, self._terminated)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        until = time.monotonic() + start_seconds
        self._say()
        while True:
            self._reap()
            if self.asked_to_end:
                self._stop(None)
                return 128 + signal.SIGTERM if self.code is None else _exit_code(self.code)
            held = self.control.held()
            if held != self.token:
                self._hold(held)
            generation, tree = self._wanted()
            if not held and tree and (generation, tree) != (self.generation, self.tree):
                self._stop(GRACE_SECONDS)
                self._start(generation, tree)
            elif not held and self.state == "held":
                self._start(self.generation, self.tree)
            elif not held and self.state == "waiting" and time.monotonic() > until:
                _tell(f"no code came in {start_seconds:g} s: `harness torchrun sync JOB` brings it")
                return NO_TREE
            if self.state == "running" and self.code is not None:
                if self.code == 0:
                    return 0
                self.state = "failed"
                self._say()
                if self.control.patient():
                    _tell(f"exit code {_exit_code(self.code)}; waiting for new code")
            if self.state == "failed" and self.code is not None and not held and not self.control.patient():
                return _exit_code(self.code)
            time.sleep(LOOK_SECONDS)

    def _wanted(self) -> tuple[int, str]:
        """Return generation and tree to run. A pod on a volume that has a tree starts with that one."""
        wanted = self.control.wanted() or self._recorded()
        return int(wanted.get("generation", 0)), str(wanted.get("tree", ""))

    def _recorded(self) -> dict[str, Any]:
        try:
            name = os.path.basename(os.readlink(os.path.join(self.root, "current")))
        except FileNotFoundError:
            return {}
        return read_json(os.path.join(self.root, "trees", f"{name}.json"))

    def _hold(self, token: str) -> None:
        if token:
            self._stop(GRACE_SECONDS)
            self.state = "held" if self.tree else "waiting"
        self.token = token
        self._say()

    def _start(self, generation: int, tree: str) -> None:
        self.generation, self.tree, self.code = generation, tree, None
        tree = str(self._recorded().get("tree", tree))  # a shared volume may have a newer one than was told
        folder = os.path.dirname(self.root)
        told = {"TORCHRUN_GENERATION": str(generation), "TORCHRUN_TREE": tree, "PWD": folder}
        if RUN_ID in os.environ:
            told[RUN_ID] = f"{os.environ[RUN_ID]}-{generation}"
        _tell(f"generation {generation}, tree {tree[:12]}: starting {self.command[0]}")
        try:
            self.process = subprocess.Popen(
                self.command, cwd=folder, env={**os.environ, **told}, start_new_session=True
            )
        except FileNotFoundError:
            _tell(f"there is no {self.command[0]} in this image, nor in the tree")
            self.code = NOT_FOUND
        except OSError as error:
            _tell(f"cannot run {self.command[0]}: {error}")
            self.code = NOT_RUN
        self.state = "running"
        self._say()

    def _stop(self, grace: float | None) -> None:
        """End the command and all that it started. Without `grace`, wait for it as long as it takes."""
        if self.process is None:
            return
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)
        until = time.monotonic() + (grace if grace is not None else float("inf"))
        while self.code is None and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
            self._reap()
        while left := _descendants(os.getpid()):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
            self._reap()
        self.process = None

    def _reap(self) -> None:
        """Collect every process that ended: as the pod's first one, this one gets those of others, too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.process is not None and pid == self.process.pid:
                self.code = self.process.returncode = os.waitstatus_to_exitcode(status)

    def _terminated(self, number: int, frame: object) -> None:
        del number, frame
        self.asked_to_end = True

    def _say(self) -> None:
        self.control.say(
            pid=os.getpid(),
            state=self.state,
            generation=self.generation,
            tree=self.tree,
            held=self.token,
            code=None if self.code is None else _exit_code(self.code),
        )


def _exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code


def _descendants(top: int) -> list[int]:
    """Return the container's processes below this one that have not ended, whatever their session."""
    parents: dict[int, int] = {}
    for pid in OwnProcesses().pids():
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state not in "ZX":
            parents[pid] = int(parent)
    found = {top}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {top})


def _tell(text: str) -> None:
    print(f"torchrun-supervisor: {text}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Run ROOT CONTROL SECONDS COMMAND…"""
    root, folder, seconds, *command = arguments
    control = Control(folder)
    try:
        lock = control.supervise()
    except Refused as refused:
        _tell(str(refused))
        return NOT_RUN
    with lock:
        return Supervisor(root, control, command).run(float(seconds))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
