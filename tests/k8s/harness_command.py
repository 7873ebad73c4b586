"""The `harness` command in a process of its own, and what tests ask of it while it runs and afterwards."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from harness.core import processes
from harness.core.errors import WaitError
from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Manifest, Verdict
from harness.faults.harness_process import Command
from harness.faults.inject import begun
from harness.settings import load


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return an environment with state, bundles and HOME below `folder`.

    The cache is the user's, because it holds what every run needs.
    """
    for name in ("home", "state", "runs"):
        (folder / name).mkdir(exist_ok=True)
    own = {
        "HOME": str(folder / "home"),
        "HARNESS_STATE_DIR": str(folder / "state"),
        "HARNESS_RUNS_DIR": str(folder / "runs"),
        "HARNESS_CACHE_DIR": str(load().cache_dir),
        "HARNESS_KEEP_RUNS": "all",
    }
    return processes.environment({**own, **more}, without=("KEEP_CLUSTER", "PLUTO_", "KUBECONFIG"))


class Harness(Command):
    """A `harness` process. Use it as a context manager, as Command."""

    def until(self, text: str, seconds: float = 180) -> None:
        """Wait until a line of its progress matches the regex `text`. Raises WaitError."""
        self._until(f"a line of progress like {text!r}", lambda: re.search(text, self.stderr), seconds)

    def until_stage(self, name: str, seconds: float = 180) -> None:
        """Wait until a stage of its bundle has begun. Raises WaitError."""
        runs = Path(self.env["HARNESS_RUNS_DIR"])
        self._until(f"the stage {name}", lambda: begun(runs / "latest", name), seconds)

    def _until(self, awaited: str, seen: Callable[[], object], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not seen():
            code = self.process.poll()
            if code is not None or time.monotonic() > deadline:
                raise WaitError(awaited, f"exit code {code}:\n{self.stderr}{self.stdout}", seconds)
            time.sleep(0.02)

    @property
    def bundle(self) -> Bundle:
        return Bundle.open((Path(self.env["HARNESS_RUNS_DIR"]) / "latest").resolve())

    @property
    def manifest(self) -> Manifest:
        manifest = self.bundle.manifest
        assert manifest is not None, f"{self.bundle.path} has no readable manifest"
        return manifest

    @property
    def verdict(self) -> Verdict:
        """Return the recorded verdict."""
        return Verdict.model_validate_json((self.bundle.path / "verdict.json").read_text())

    def left_behind(self) -> list[str]:
        """Return what is left of it: its processes, its child processes, and folders of its launches."""
        state = self.env["HARNESS_STATE_DIR"]
        left = [f"process {p.pid}: {processes.command_line(p)}" for p in processes.started_with(state)]
        return left + [str(path) for path in Path(state).glob("launch-*")]


def harness(*arguments: str, env: Mapping[str, str]) -> Harness:
    """Run the command to its end."""
    with Harness(*arguments, env=env) as run:
        run.end(300)
    return run


def family(pid: int) -> list[psutil.Process]:
    """Return the process and all that it started, as they are now."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def containers(cluster: str) -> list[str]:
    """Return the Docker containers of a kind cluster, running or not."""
    label = f"label=io.x-k8s.kind.cluster={cluster}"
    listed = subprocess.run(
        ["docker", "ps", "-aq", "--filter", label], capture_output=True, text=True, check=True
    )
    return listed.stdout.split()


def until_container(cluster: str, seconds: float = 60) -> None:
    """Wait until Docker has created the first node. Docker is polled, because there is nothing to watch."""
    deadline = time.monotonic() + seconds
    while not containers(cluster):
        if time.monotonic() > deadline:
            raise WaitError(f"a container of {cluster}", "none", seconds)
        time.sleep(0.05)
