"""The `harness` command as users run it: a process group of its own, its progress read as it comes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.core.errors import HarnessError, WaitError
from harness.evidence.reader import Bundle
from harness.evidence.schema import Manifest, Verdict

HARNESS = Path(sys.executable).with_name("harness")


def environment(folder: Path, **more: str) -> dict[str, str]:
    """State, bundles and HOME below `folder`; the cache is the user's: it holds what every run needs."""
    from harness.settings import load

    for name in ("home", "state", "runs"):
        (folder / name).mkdir(exist_ok=True)
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("KEEP_CLUSTER", "PLUTO_", "KUBECONFIG"))}
    return {
        **kept,
        "HOME": str(folder / "home"),
        "HARNESS_STATE_DIR": str(folder / "state"),
        "HARNESS_RUNS_DIR": str(folder / "runs"),
        "HARNESS_CACHE_DIR": str(load().cache_dir),
        "HARNESS_KEEP_RUNS": "all",
        **more,
    }


class Command:
    """`harness ARGUMENTS`, started. Use as a context manager: nothing of it is left behind."""

    def __init__(self, *arguments: str, env: Mapping[str, str]) -> None:
        """In the current folder, with nothing but `env` as its environment."""
        self.env = dict(env)
        self.lines: list[str] = []
        self.stdout = ""
        self._changed = threading.Condition()
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
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _output(self) -> None:
        assert self.process.stdout is not None
        self.stdout = self.process.stdout.read()

    @property
    def stderr(self) -> str:
        return "".join(self.lines)

    def until(self, text: str, seconds: float = 180) -> None:
        """Until a line of its progress matches the regex `text`. Raises WaitError."""

        def said() -> bool:
            return any(re.search(text, line) for line in self.lines)

        with self._changed:
            self._changed.wait_for(lambda: said() or not self._readers[0].is_alive(), seconds)
        if not said():
            code = self.process.poll()
            raise WaitError(
                f"a line of progress like {text!r}", f"exit code {code}:\n{self.stderr}{self.stdout}", seconds
            )

    def interrupt(self, signum: signal.Signals = signal.SIGINT) -> None:
        """To the whole process group, as a terminal does."""
        os.killpg(self.process.pid, signum)

    def end(self, seconds: float = 180) -> int:
        """Its exit code."""
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

    # -- what is left of it ----------------------------------------------------------------------------
    @property
    def bundle(self) -> Bundle:
        return Bundle.open((Path(self.env["HARNESS_RUNS_DIR"]) / "latest").resolve())

    @property
    def manifest(self) -> Manifest:
        manifest = self.bundle.manifest
        if manifest is None:
            raise HarnessError(f"{self.bundle.path} has no readable manifest")
        return manifest

    @property
    def verdict(self) -> Verdict:
        """As it was recorded."""
        return Verdict.model_validate_json((self.bundle.path / "verdict.json").read_text())

    def left_behind(self) -> list[str]:
        """Processes of it or of what it started, and folders of its launches."""
        state = self.env["HARNESS_STATE_DIR"]
        processes = [f"process {pid}: {command(pid)}" for pid in _with_environment(state)]
        return processes + [str(path) for path in Path(state).glob("launch-*")]


def harness(*arguments: str, env: Mapping[str, str]) -> Command:
    """Run to the end."""
    with Command(*arguments, env=env) as run:
        run.end(300)
    return run


def _interruptible() -> None:
    """As in a terminal, also where this process ignores SIGINT because it runs in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def containers(cluster: str) -> list[str]:
    """Docker containers of a kind cluster, running or not."""
    label = f"label=io.x-k8s.kind.cluster={cluster}"
    listed = subprocess.run(
        ["docker", "ps", "-aq", "--filter", label], capture_output=True, text=True, check=True
    )
    return listed.stdout.split()


def until_container(cluster: str, seconds: float = 60) -> None:
    """Docker has begun the first node: nothing to watch, so it is asked."""
    deadline = time.monotonic() + seconds
    while not containers(cluster):
        if time.monotonic() > deadline:
            raise WaitError(f"a container of {cluster}", "none", seconds)
        time.sleep(0.05)


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def descendants(pid: int) -> Iterator[int]:
    """The process and all that it started, as /proc shows them now."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task").glob("*/children")
        found = [int(child) for listed in children for child in listed.read_text().split()]
    except OSError:
        return
    for child in found:
        yield from descendants(child)


def _with_environment(text: str) -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and text.encode() in (folder / "environ").read_bytes():
                yield int(folder.name)
        except OSError:
            continue
