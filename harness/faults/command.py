"""Run the `harness` command as users do, in its own process group, and read its progress line by line."""

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
    """A running `harness` command. Use it as a context manager, so that the command ends with the block."""

    def __init__(self, *arguments: str, env: Mapping[str, str]) -> None:
        """Start the command in the current folder, with only `env` as its environment."""
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
            self.lines.append(line)  # A caller reads the lines while the harness runs.

    def _output(self) -> None:
        assert self.process.stdout is not None
        self.stdout = self.process.stdout.read()

    @property
    def stderr(self) -> str:
        return "".join(self.lines)

    def interrupt(self, signum: signal.Signals = signal.SIGINT) -> None:
        """Send a signal to the process group, as a terminal does."""
        os.killpg(self.process.pid, signum)

    def end(self, seconds: float = 180) -> int:
        """Wait until the command has exited, and return its exit code."""
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
    """Restore the default handler of SIGINT, because background processes otherwise ignore this signal."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
