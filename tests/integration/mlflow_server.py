"""A real `mlflow server` on loopback. Its venv is kept in the harness's cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any

from tracker_server import ROOT

from harness.core.locks import locked
from harness.provision.uv import uv
from harness.settings import Settings

LOCK = ROOT / "locks" / "mlflow.txt"


def python() -> Path:
    """Return the Python interpreter of a venv with mlflow and Pluto's client. Creating the venv takes about
    20 seconds."""
    made_of = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:12]
    root = Settings().cache_dir / "venvs"
    venv = root / f"mlflow-{made_of}"
    with locked(root / f"{venv.name}.lock", lambda: None):
        if not (venv / ".made").exists():
            shutil.rmtree(venv, ignore_errors=True)
            program = uv() or "uv"
            subprocess.run([program, "venv", "--quiet", "--python", sys.executable, venv], check=True)
            install = [
                program,
                "pip",
                "sync",
                "--quiet",
                "--no-build",
                "--compile-bytecode",
                "--require-hashes",
            ]
            subprocess.run([*install, "--python", venv / "bin" / "python", LOCK], check=True)
            # It imports all of the client at every start of Python (Makefile).
            for hook in venv.glob("lib/python3*/site-packages/*_pluto_wandb_hook.pth"):
                hook.unlink()
            (venv / ".made").touch()
    return venv / "bin" / "python"


class MlflowServer:
    """`start` returns once the server responds, and `kill` sends SIGKILL. The server can be restarted
    repeatedly with the same database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> MlflowServer:
        store = f"sqlite:///{self.folder}/mlflow.db"
        words = [
            "server",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--workers",
            "1",
            "--artifacts-destination",
            str(self.folder / "artifacts"),
        ]
        log = self.folder / "mlflow.log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [python().with_name("mlflow"), *words, "--backend-store-uri", store],
                cwd=self.folder,
                env={
                    "PATH": f"{python().parent}:{os.environ['PATH']}",
                    "HOME": str(self.folder),
                    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                    "MLFLOW_DISABLE_TELEMETRY": "true",
                },
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        deadline = time.monotonic() + 90
        while not self._answers():
            assert self._process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        return self

    def kill(self) -> None:
        """Kill the server and its workers immediately."""
        self.signal(signal.SIGKILL)
        if self._process:
            self._process.wait(15)
            self._process = None

    def signal(self, number: int) -> None:
        """Send a signal to the server and its workers. After SIGSTOP, the server accepts connections but does
        not respond."""
        if self._process:
            os.killpg(self._process.pid, number)

    def environment(self) -> dict[str, str]:
        return {"MLFLOW_TRACKING_URI": self.url, "MLFLOW_DISABLE_TELEMETRY": "true"}

    def runs(self) -> list[dict[str, Any]]:
        """Return all runs in all experiments, as returned by the server's own API."""
        experiments = self.ask("experiments/search", {"max_results": 100})["experiments"]
        ids = [one["experiment_id"] for one in experiments]
        found: list[dict[str, Any]] = self.ask("runs/search", {"experiment_ids": ids}).get("runs", [])
        return found

    def values(self, run: dict[str, Any]) -> dict[str, dict[int, list[float]]]:
        """Return all values for each step of each metric. MLflow keeps every value that was ever logged."""
        found: dict[str, dict[int, list[float]]] = {}
        for one in run["data"]["metrics"]:
            steps: dict[int, list[float]] = defaultdict(list)
            path = f"metrics/get-history?run_id={run['info']['run_id']}&metric_key={one['key']}"
            for point in self.ask(path)["metrics"]:
                steps[int(point.get("step", 0))].append(float(point["value"]))
            found[one["key"]] = dict(steps)
        return found

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/api/2.0/mlflow/{path}", data, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return True
        except OSError:
            return False
