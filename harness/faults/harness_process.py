"""Run the `harness` command as users do, in its own process group, and read its progress line by line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from harness.core import processes
from harness.settings import Settings

CPU_REQUEST = "150m"
"""The CPU request of each pod, which is low enough for several concurrent launches to fit on the cluster."""
HARNESS = Path(sys.executable).with_name("harness")


def launch_environment(settings: Settings, runs: Path, is_concurrent: bool) -> dict[str, str]:
    """Return the user's environment, adapted for a `harness run` on the cluster in the settings.

    The bundle is written to `runs` and kept. `is_concurrent` means that other launches run at the same time.
    """
    own: dict[str, str | None] = {
        "HARNESS_CLUSTER_NAME": settings.cluster_name,
        "HARNESS_WORKERS": str(settings.workers),
        "HARNESS_KUBERNETES": settings.kubernetes,
        "HARNESS_KUBECONFIG": str(settings.kubeconfig.absolute()) if settings.kubeconfig else None,
        "HARNESS_CONTEXT": settings.context,
        "HARNESS_IMAGES": settings.images,
        "HARNESS_STATE_DIR": str(settings.state_dir.absolute()),
        "HARNESS_CACHE_DIR": str(settings.cache_dir.absolute()),
        "HARNESS_RUNS_DIR": str(runs.absolute()),
        "HARNESS_KEEP_RUNS": "all",
        "HARNESS_WAIT_SECONDS": str(settings.wait_seconds),
    }
    shared = {"HARNESS_CPU_REQUEST": CPU_REQUEST} if is_concurrent else {}
    return {**shared, **processes.environment(own, without=("KEEP_CLUSTER", "PLUTO_RUN_ID"))}


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
            preexec_fn=_interruptible,  # noqa: PLW1509 - it only makes one system call
        )
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._errors, self._output)]
        for reader in self._readers:
            reader.start()

    def _errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)  # Callers read these lines while the command is still running.

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
        """Wait until the command has exited, for at most `seconds`, and return its exit code."""
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
