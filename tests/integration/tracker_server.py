"""The tracker in a separate process on loopback, and real Pluto clients that log to it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
CLIENT = Path(__file__).with_name("tracker_client.py")
STEADY = Path(__file__).with_name("steady")
KEY = "mlpi_test_key"
LISTENING = re.compile(r"running on (http://127\.0\.0\.1:\d+)")


class Server:
    """`start` returns once the server is listening, and `kill` sends SIGKILL. The server can be restarted
    repeatedly with the same database."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.db = folder / "tracker.db"
        self.log = folder / "server.log"
        self.options = options
        self.url = ""
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Server:
        command = [sys.executable, "-m", "harness.tracker", "--port", str(self._port), "--db", str(self.db)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *self.options],
                cwd=ROOT,
                env={"PATH": os.environ["PATH"], "TRACKER_API_KEY": KEY},
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 60
        while not (found := LISTENING.search(self.log.read_text())):
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)
        self.url = found[1]
        self._port = int(self.url.rpartition(":")[2])
        return self

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.send_signal(number)
        return process.wait(15)

    def client(self, **headers: str) -> httpx.Client:
        return httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {KEY}", **headers}, trust_env=False
        )

    def pluto_environment(self, home: Path, **more: str) -> Mapping[str, str]:
        """Return the environment that a pod would have, without this machine's variables, and with the server
        as the only address. See steady/sitecustomize.py for network interfaces that disappear.
        """
        urls = {f"PLUTO_URL_{part}": self.url for part in ("APP", "API", "INGEST", "PY")}
        home.mkdir(parents=True, exist_ok=True)
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "PLUTO_DIR": str(home / "pluto"),
            "PLUTO_API_KEY": KEY,
            "PLUTO_PROJECT": "e2e",
            "PLUTO_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1",
            **urls,
            **more,
            "PYTHONPATH": os.pathsep.join(filter(None, [more.get("PYTHONPATH"), str(STEADY)])),
        }

    def pluto(
        self, home: Path, *arguments: str, script: str = CLIENT.name, **environment: str
    ) -> subprocess.Popen[str]:
        """Start the unmodified client in a separate process that runs tracker_client.py with these
        arguments."""
        return subprocess.Popen(
            [sys.executable, str(CLIENT.with_name(script)), *arguments],
            env=self.pluto_environment(home, **environment),
            cwd=home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def create(client: httpx.Client, external_id: str | None = "shared", **fields: Any) -> dict[str, Any]:
    """Create a run in project e2e with the client's request, and return the response."""
    body = {"runName": "run", "projectName": "e2e", "externalId": external_id, **fields}
    answer = client.post("/api/runs/create", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def log_metrics(client: httpx.Client, run_id: object, text: str, name: str = "rank0") -> httpx.Response:
    """Send lines in one request, with the client's headers."""
    headers = {"X-Run-Id": str(run_id), "X-Run-Name": name, "X-Project-Name": "e2e"}
    return client.post("/ingest/metrics", content=text, headers=headers)


def finished(*processes: subprocess.Popen[str], seconds: float = 300) -> list[str]:
    """Assert that all processes exit with 0, and return their output."""
    deadline = time.monotonic() + seconds
    outputs = [process.communicate(timeout=max(1, deadline - time.monotonic()))[0] for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    return outputs
