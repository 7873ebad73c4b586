"""Run netcheck in pods by `kubectl exec`, in all of them at the same time.

The package goes in on stdin and stays in memory there. Every pod says first which ports it uses.
"""

from __future__ import annotations

import base64
import io
import json
import secrets
import subprocess
import threading
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any

from harness.core.errors import HarnessError
from harness.workers.netcheck import Diagnosis

START_SECONDS = 30.0
"""Seconds for an exec to start, on a busy node too."""
SLACK_SECONDS = 20.0
"""Seconds after netcheck's own deadline: rank 0 may tell the others until then."""
BOOT = """import base64, os, sys
sys.version_info >= (3, 9) or sys.exit("netcheck needs Python 3.9; this is " + sys.version.split()[0])
held = os.memfd_create("netcheck")
os.write(held, base64.b64decode(sys.stdin.readline()))
sys.path.insert(0, "/proc/self/fd/%d" % held)
from netcheck.inside import main
from own_processes import OwnProcesses
sys.exit(main(OwnProcesses().pids()))"""
"""Nothing is written to the container's disk, which may be read-only or full."""


def free_port(first: int, used: Sequence[int]) -> int:
    """Return the first port from `first` on that no pod uses. The rules for it are most like the job's."""
    taken = set(used)
    ports: Iterable[int] = (*range(first, 65536), *range(1024, first))
    return next(port for port in ports if port not in taken)


def package() -> bytes:
    """Return netcheck and own_processes.py as a zip file that Python can import from."""
    folder = Path(str(resources.files("harness"))) / "workers"
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in (folder / "own_processes.py", *sorted(folder.glob("netcheck/*.py"))):
            archive.writestr(str(path.relative_to(folder)), path.read_bytes())
    return made.getvalue()


class Exec:
    """netcheck in one pod: started, and waiting for how to check."""

    def __init__(self, command: Sequence[str], sent: str) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        words = [*command, "python3", "-c", BOOT]
        try:
            self._process = subprocess.Popen(words, text=True, **pipes)  # type: ignore[call-overload]
        except FileNotFoundError:
            raise HarnessError(f"there is no {command[0]}", hint="`harness doctor --fix`") from None
        self._sent = sent

    def ready(self) -> dict[str, Any]:
        """Bring the package, and return what the pod says of itself. Raises ValueError with what is wrong."""
        return self._answer(self._sent, START_SECONDS)

    def diagnosis(self, told: Mapping[str, Any]) -> Diagnosis:
        """Say how to check, and return the diagnosis. Raises ValueError with what is wrong."""
        return Diagnosis.of(self._answer(json.dumps(told), told["deadline"] + SLACK_SECONDS))

    def _answer(self, line: str, seconds: float) -> dict[str, Any]:
        over = threading.Timer(seconds, self._process.kill)
        over.start()
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
            if answer:
                return dict(json.loads(answer))
        except BrokenPipeError:
            pass
        finally:
            over.cancel()
        said = self._process.stderr.read().strip().splitlines() if self._process.wait() >= 0 else []
        raise ValueError(said[-1] if said else f"no answer within {seconds:.0f} s")

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def together(
    commands: Mapping[int, Sequence[str]], told: Mapping[str, Any]
) -> tuple[dict[int, Diagnosis], dict[int, str]]:
    """Run netcheck with these commands at the same time. Returns diagnoses, and errors in words, by rank."""
    sent = base64.b64encode(package()).decode()
    errors: dict[int, str] = {}

    def tried(rank: int, what: Any, *arguments: Any) -> Any:
        try:
            return what(*arguments)
        except ValueError as error:
            errors[rank] = str(error)
            return None

    started = {rank: Exec(command, sent) for rank, command in commands.items()}
    try:
        with ThreadPoolExecutor(len(started)) as pool:
            said = dict(zip(started, pool.map(lambda r: tried(r, started[r].ready), started), strict=True))
            ready = {rank: each for rank, each in said.items() if each is not None}
            if not ready:
                return {}, errors
            used = [port for each in ready.values() for port in each["ports"]]
            port = free_port(min(each["master_port"] for each in ready.values()) + 1, used)
            how = {**told, "port": port, "run": f"inside-{secrets.token_hex(4)}"}

            def check(rank: int) -> Diagnosis | None:
                defaults = {"NODE_RANK": str(rank), "NNODES": str(told["nodes"])}
                found: Diagnosis | None = tried(rank, started[rank].diagnosis, {**how, "defaults": defaults})
                return found

            found = dict(zip(ready, pool.map(check, ready), strict=True))
    finally:
        for each in started.values():
            each.end()
    return {rank: each for rank, each in found.items() if each is not None}, errors
