"""Run a pod's command in the current tree, and restart it after each switch to another tree.

    python3 … ROOT CONTROL SECONDS COMMAND…

The command runs in the parent folder of ROOT, with the variables TORCHRUN_GENERATION and TORCHRUN_TREE. All
of a job's pods have the same generation. The rendezvous id contains the generation, so that ranks with
different code never communicate. A hold stops the command and all processes that it started, including those
in other sessions, such as torchrun's ranks. The supervisor exits with the command's exit code, or with 128
plus the number of the signal that ended the command. While a client waits to send new code (patience), a
failed command does not end the pod, so that the client can still fix the code.
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

POLL_SECONDS = 0.05
GRACE_SECONDS = 5.0
"""The number of seconds between SIGTERM and SIGKILL when the command is stopped for a switch. If the pod is
deleted, the pod's own grace period applies instead.
"""
NO_TREE, NOT_FOUND, NOT_RUN = 75, 127, 126
RUN_ID = "TORCHRUN_RUN_ID"
"""The environment variable with the rendezvous id. If the variable is set, the supervisor appends the
generation to the id."""
PR_SET_CHILD_SUBREAPER = 36


class Supervisor:
    """Runs a pod's command, and restarts it after each switch to another tree."""

    def __init__(self, root: str, control: Control, command: Sequence[str]) -> None:
        self.root, self.control, self.command = os.path.abspath(root), control, command
        self.process: subprocess.Popen[bytes] | None = None
        self.code: int | None = None
        self.generation, self.tree = 0, ""
        self.state, self.token = "waiting", ""
        self.end_requested = False

    def run(self, start_seconds: float) -> int:
        """Run the command, and restart it as requested.

        Return the supervisor's exit code after the last run.
        """
        signal.signal(signal.SIGTERM, self._terminated)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        deadline = time.monotonic() + start_seconds
        self._write_status()
        while True:
            self._reap()
            if self.end_requested:
                self._stop(None)
                return 128 + signal.SIGTERM if self.code is None else _exit_code(self.code)
            token = self.control.hold_token()
            if token != self.token:
                self._hold(token)
            generation, tree = self._requested()
            if not token and tree and (generation, tree) != (self.generation, self.tree):
                self._stop(GRACE_SECONDS)
                self._start(generation, tree)
            elif not token and self.state == "held":
                self._start(self.generation, self.tree)
            elif not token and self.state == "waiting" and time.monotonic() > deadline:
                _log(f"no code arrived within {start_seconds:g} s: run `harness torchrun sync JOB`")
                return NO_TREE
            if self.state == "running" and self.code is not None:
                if self.code == 0:
                    return 0
                self.state = "failed"
                self._write_status()
                if self.control.patient():
                    _log(f"exit code {_exit_code(self.code)}; waiting for new code")
            if self.state == "failed" and self.code is not None and not token and not self.control.patient():
                return _exit_code(self.code)
            time.sleep(POLL_SECONDS)

    def _requested(self) -> tuple[int, str]:
        """Return the generation and tree that the client requested.

        Without a request, return those on the pod's volume.
        """
        request = self.control.wanted() or self._recorded()
        return int(request.get("generation", 0)), str(request.get("tree", ""))

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
        self._write_status()

    def _start(self, generation: int, tree: str) -> None:
        self.generation, self.tree, self.code = generation, tree, None
        # If several pods share a volume, another pod may already have switched the volume to a newer tree.
        tree = str(self._recorded().get("tree", tree))
        folder = os.path.dirname(self.root)
        variables = {"TORCHRUN_GENERATION": str(generation), "TORCHRUN_TREE": tree, "PWD": folder}
        if RUN_ID in os.environ:
            variables[RUN_ID] = f"{os.environ[RUN_ID]}-{generation}"
        _log(f"generation {generation}, tree {tree[:12]}: starting {self.command[0]}")
        try:
            self.process = subprocess.Popen(
                self.command, cwd=folder, env={**os.environ, **variables}, start_new_session=True
            )
        except FileNotFoundError:
            _log(f"{self.command[0]} is neither in this image nor in the tree")
            self.code = NOT_FOUND
        except OSError as error:
            _log(f"cannot run {self.command[0]}: {error}")
            self.code = NOT_RUN
        self.state = "running"
        self._write_status()

    def _stop(self, grace: float | None) -> None:
        """Stop the command with SIGTERM, then kill all remaining processes.

        The command has `grace` seconds to exit after SIGTERM. If `grace` is None, the time is unlimited.
        """
        if self.process is None:
            return
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)
        deadline = time.monotonic() + (grace if grace is not None else float("inf"))
        while self.code is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            self._reap()
        while pids := _descendants(os.getpid()):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
            self._reap()
        self.process = None

    def _reap(self) -> None:
        """Reap all child processes that have exited, including orphaned processes, which this process adopts
        as a subreaper."""
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
        self.end_requested = True

    def _write_status(self) -> None:
        self.control.write_status(
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
    """Return the PIDs of the running descendants of process `top` in this container, in any session."""
    parents: dict[int, int] = {}
    for pid in OwnProcesses().pids():
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state not in "ZX":
            parents[pid] = int(parent)
    family = {top}
    while children := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= children
    return sorted(family - {top})


def _log(text: str) -> None:
    print(f"torchrun-supervisor: {text}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Run the supervisor. The arguments are ROOT CONTROL SECONDS COMMAND… Return the exit code."""
    root, folder, seconds, *command = arguments
    control = Control(folder)
    try:
        lock = control.supervise()
    except Refused as refused:
        _log(str(refused))
        return NOT_RUN
    with lock:
        return Supervisor(root, control, command).run(float(seconds))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
