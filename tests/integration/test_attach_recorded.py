"""`harness attach` to a job that the recorder's policy recorded: the digests in its logs, and the tracker.

The ranks are real programs with the unmodified client and the recorder's folder on PYTHONPATH, as the policy
sets it. Their lines are the logs of pods on an API server on loopback.
"""

from __future__ import annotations

import base64
import re
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import attached_jobs as jobs
import pytest
import yaml
from bundle_api import BundleApi
from mounting import lay_out
from tracker_server import KEY, Server

from harness.attach.find import Target
from harness.attach.resources import roles
from harness.attach.secret import SecretKey
from harness.attach.session import Options, attach
from harness.attach.tracker import TrackerOptions
from harness.context import RunContext
from harness.core.errors import UsageError
from harness.core.service_proxy import service_of
from harness.evidence import Bundle
from harness.evidence.schema.bundle import Check, Verdict
from harness.launch.mounts import recorder
from harness.report.finalize import Outcome
from harness.settings import Settings
from harness.tracker.shared.keys import project_key

SERVICE = "http://tracker.tools.svc.cluster.local:8080"
TRAIN = """
    import os, pluto
    rank = os.environ["RANK"]
    run = pluto.init(name=f"node{rank}")
    for step in range(900, 1100):
        run.log({f"loss/{rank}": 1 / (step + 1)}, step=step)
    run.finish()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorder's folder, as the ConfigMap lays it out in a container."""
    return lay_out(recorder.MOUNTED, tmp_path_factory.mktemp("recorder"))


@dataclass
class Recorded:
    """A Job of two ranks that the policy recorded, and what `harness attach` says about it."""

    api: BundleApi
    server: Server
    folder: Path
    home: Path
    settings: Settings
    env: dict[str, str] = field(default_factory=dict)
    """Variables in the specs of all pods."""
    nonce: str = "uid-train"

    def __post_init__(self) -> None:
        self.run_id = f"shared-{self.home.name}"
        self.env = {
            "PLUTO_URL_API": self.server.url,
            "PLUTO_PROJECT": "e2e",
            "PLUTO_RUN_ID": self.run_id,
        }

    def train(self, *ranks: int, program: str = TRAIN, world: int = 2, **environment: str) -> None:
        """Run the ranks one after the other, as torchrun starts them."""
        for rank in ranks:
            home = self.home / f"home{rank}"
            given = {
                "PYTHONPATH": str(self.folder),
                "HARNESS_NONCE": self.nonce,
                "HARNESS_RECORDER_MODE": "admitted",
                "HARNESS_LOG": str(self.log(rank)),
                "PLUTO_RUN_ID": self.run_id,
                "RANK": str(rank),
                "LOCAL_RANK": "0",
                "WORLD_SIZE": str(world),
                "TORCHELASTIC_RESTART_COUNT": "0",
                **environment,
            }
            process = subprocess.run(
                [sys.executable, "-c", textwrap.dedent(program)],
                env=self.server.pluto_environment(home, **given),
                cwd=home,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            with self.log(rank).open("a") as log:
                log.write(process.stdout + process.stderr)

    def log(self, rank: int) -> Path:
        path = self.home / f"log{rank}"
        path.touch()
        return path

    def pod(self, index: int, code: int | None = 0, recorded: bool = True, **more: Any) -> dict[str, Any]:
        values = dict(self.env)
        values |= {"HARNESS_NONCE": self.nonce, "HARNESS_RECORDER_MODE": "admitted"} if recorded else {}
        found = jobs.pod(index, code, **more)
        found["spec"]["containers"][0]["env"] = [{"name": n, "value": v} for n, v in values.items()]
        return found

    def serve(self, *pods: dict[str, Any], job: dict[str, Any] | None = None, start: float = 1) -> None:
        """Serve the Job with its pods. The log of a pod is that of the rank with its index."""
        self.api.objects["job"] = [job or jobs.job("train", 2, jobs.condition("Complete"))]
        self.api.objects["pod"] = list(pods) or [self.pod(0), self.pod(1)]
        for pod in self.api.objects["pod"]:
            rank = int(pod["metadata"]["annotations"][jobs.INDEX])
            lines = self.log(rank).read_text().splitlines()
            self.api.logs[pod["metadata"]["name"], "main"] = jobs.stamped(*lines, start=start)

    def attach(self, word: str = "job/train", **options: Any) -> Outcome:
        secret = SecretKey.of(options.pop("secret", ""))
        asked = Options(tracker=TrackerOptions(secret=secret, **options))
        return attach(Target(word), asked, RunContext(settings=self.settings, progress=lambda _: None))

    def lose(self, metric: str, step: int) -> None:
        """Remove a point from the tracker's database."""
        raise NotImplementedError


@pytest.fixture
def api() -> Iterator[BundleApi]:
    server = BundleApi()
    server.objects["node"] = [jobs.node(f"node-{n}") for n in range(4)]
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def recorded(server: Server, folder: Path, api: BundleApi, tmp_path: Path) -> Recorded:
    folders = {name: tmp_path / name for name in ("runs_dir", "state_dir", "cache_dir")}
    settings = Settings(kubeconfig=api.kubeconfig(tmp_path), pluto_api_key=KEY, **folders)
    return Recorded(api, server, folder, tmp_path, settings)


def check(verdict: Verdict, name: str) -> Check:
    return next(each for each in verdict.checks if each.name == name)


def not_passed(verdict: Verdict) -> dict[str, str]:
    return {each.name: f"{each.result} {each.explanation}" for each in verdict.checks if each.result != "PASS"}


def test_a_job_with_every_point_in_its_run_passes(recorded: Recorded) -> None:
    """Contract: digests, run and key are found without options, and every check is PASS."""
    recorded.train(0, 1)
    recorded.serve()
    outcome = recorded.attach()
    assert outcome.verdict.verdict == "PASS", not_passed(outcome.verdict)
