"""Run netcheck with `kubectl exec` in several pods at the same time.

The netcheck package is sent to stdin of each command, and is kept only in the pod's memory. Each pod first
reports the ports that it uses.
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
from harness.core.processes import environment
from harness.workers.netcheck import Diagnosis

START_SECONDS = 30.0
"""The maximum number of seconds that `kubectl exec` may take to start netcheck on a busy node."""
SLACK_SECONDS = 20.0
"""The number of seconds added to netcheck's own deadline, during which rank 0 sends the result to the other
ranks."""
BOOT = """import base64, os, sys
sys.version_info >= (3, 9) or sys.exit("netcheck needs Python 3.9; this is " + sys.version.split()[0])
held = os.memfd_create("netcheck")
os.write(held, base64.b64decode(sys.stdin.readline()))
sys.path.insert(0, "/proc/self/fd/%d" % held)
from netcheck.inside import main
from own_processes import OwnProcesses
sys.exit(main(OwnProcesses().pids()))"""
"""The Python code that starts netcheck. It does not write to the container's disk, which might be read-only
or full."""


def free_port(first: int, used: Sequence[int]) -> int:
    """Return the first port, starting at `first`, that no pod uses.

    The search starts next to the job's own port, `first` - 1, because firewall rules probably treat
    both ports alike.
    """
    occupied = set(used)
    ports: Iterable[int] = (*range(first, 65536), *range(1024, first))
    return next(port for port in ports if port not in occupied)


def package() -> bytes:
    """Return a zip file from which Python can import the netcheck package and the own_processes module."""
    folder = Path(str(resources.files("harness"))) / "workers"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in (folder / "own_processes.py", *sorted(folder.glob("netcheck/*.py"))):
            archive.writestr(str(path.relative_to(folder)), path.read_bytes())
    return buffer.getvalue()


class Exec:
    """A netcheck process in one pod, started with `kubectl exec`.

    It reads the netcheck package and its parameters from stdin.
    """

    def __init__(self, command: Sequence[str], payload: str) -> None:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        words = [*command, "python3", "-c", BOOT]
        try:
            self._process = subprocess.Popen(words, env=environment(), text=True, **pipes)  # type: ignore[call-overload]
        except FileNotFoundError:
            raise HarnessError(f"there is no {command[0]}", hint="`harness doctor --fix`") from None
        self._sent = payload

    def ready(self) -> dict[str, Any]:
        """Send the netcheck package, and return the pod's report, which contains the ports that the pod uses.

        Raises ValueError with the reason if netcheck fails or does not respond.
        """
        return self._response(self._sent, START_SECONDS)

    def diagnosis(self, parameters: Mapping[str, Any]) -> Diagnosis:
        """Send the parameters of the check, and return the pod's diagnosis.

        Raises ValueError with the reason if netcheck fails or does not respond.
        """
        return Diagnosis.of(self._response(json.dumps(parameters), parameters["deadline"] + SLACK_SECONDS))

    def _response(self, line: str, seconds: float) -> dict[str, Any]:
        over = threading.Timer(seconds, self._process.kill)
        over.start()
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            response = self._process.stdout.readline()
            if response:
                return dict(json.loads(response))
        except BrokenPipeError:
            pass
        finally:
            over.cancel()
        errors = self._process.stderr.read().strip().splitlines() if self._process.wait() >= 0 else []
        raise ValueError(errors[-1] if errors else f"no response within {seconds:.0f} s")

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def together(
    commands: Mapping[int, Sequence[str]], parameters: Mapping[str, Any]
) -> tuple[dict[int, Diagnosis], dict[int, str]]:
    """Run all commands at the same time. Each command starts netcheck in one rank's pod.

    Return the diagnoses and the error messages, both keyed by rank.
    """
    payload = base64.b64encode(package()).decode()
    errors: dict[int, str] = {}

    def attempt(rank: int, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except ValueError as error:
            errors[rank] = str(error)
            return None

    execs = {rank: Exec(command, payload) for rank, command in commands.items()}
    try:
        with ThreadPoolExecutor(len(execs)) as pool:
            reports = dict(zip(execs, pool.map(lambda r: attempt(r, execs[r].ready), execs), strict=True))
            ready = {rank: each for rank, each in reports.items() if each is not None}
            if not ready:
                return {}, errors
            used = [port for each in ready.values() for port in each["ports"]]
            port = free_port(min(each["master_port"] for each in ready.values()) + 1, used)
            common = {**parameters, "port": port, "run": f"inside-{secrets.token_hex(4)}"}

            def check(rank: int) -> Diagnosis | None:
                defaults = {"NODE_RANK": str(rank), "NNODES": str(parameters["nodes"])}
                diagnosis: Diagnosis | None = attempt(
                    rank, execs[rank].diagnosis, {**common, "defaults": defaults}
                )
                return diagnosis

            diagnoses = dict(zip(ready, pool.map(check, ready), strict=True))
    finally:
        for each in execs.values():
            each.end()
    return {rank: each for rank, each in diagnoses.items() if each is not None}, errors
