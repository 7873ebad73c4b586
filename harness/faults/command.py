"""The `harness` command as users run it, in a process group of its own. Its progress is read as it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

HARNESS = Path(sys.executable).with_name("harness")


class Command:
    """A running `harness ARGUMENTS`. Use it as a context manager, so that no process of it is left behind."""

    def __init__(self, *arguments: str, env: Mapping[str, str]) -> None:
        """Start it in the current folder, with nothing but `env` as its environment."""
        self.env = dict(env)
        self.lines: list[str] = []
        self.stdout = ""
        self.process = subprocess.Popen(
            [str(HARNESS), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env,
            start_new_session=True,
            preexec_fn=_interruptible,  # noqa: PLW1509 - one system call
        )
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._errors, self._output)]
        for reader in self._readers:
            reader.start()

    def _errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)  # Line by line, because a caller reads it while the harness runs.

    def _output(self) -> None:
        assert self.process.stdout is not None
        self.stdout = self.process.stdout.read()

    @property
    def stderr(self) -> str:
        return "".join(self.lines)

    def interrupt(self, signum: signal.Signals = signal.SIGINT) -> None:
        """Send a signal to the whole process group, as a terminal does."""
        os.killpg(self.process.pid, signum)

    def end(self, seconds: float = 180) -> int:
        """Wait for its end and return its exit code."""
        code = self.process.wait(seconds)
        for reader in self._readers:
            reader.join(10)
        return code

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.interrupt(signal.SIGTERM)
            self.end()


def _interruptible() -> None:
    """Restore SIGINT as in a terminal. A process that runs in the background ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
