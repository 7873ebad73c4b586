"""Fixtures for tests with real servers. Test files that need other server options define their own
fixtures."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attached_jobs
import pytest
from bundle_api import BundleApi
from mounting import lay_out
from namespaces import World, world
from recorded_program import NONCE, Points, Ran, Run
from tracker_server import Server

from harness.attach.job_lookup import Target
from harness.attach.session import Options, attach
from harness.context import RunContext
from harness.launch.mounts import recorder
from harness.report.finalize import Outcome
from harness.settings import Settings
from harness.tracker.client.audit import EmbeddedAudit, collect


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Return four pods in network namespaces, shared by the tests in a file."""
    with world(tmp_path_factory.mktemp("world")) as made:
        yield made


@pytest.fixture
def pods(four: World) -> Iterator[World]:
    """Return the four pods, after all network rules have been removed."""
    yield four
    four.reset()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a tracker on loopback, shared by the tests in a file."""
    server = Server(tmp_path_factory.mktemp("tracker")).start()
    yield server
    server.stop()


@pytest.fixture
def api() -> Iterator[BundleApi]:
    """Return a read-only API server on loopback with four nodes and the namespace `team`."""
    server = BundleApi()
    server.objects["namespace"] = [{"metadata": {"name": "team", "uid": "team", "resourceVersion": "1"}}]
    server.objects["node"] = [attached_jobs.node(f"node-{n}") for n in range(4)]
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def settings(api: BundleApi, tmp_path: Path) -> Settings:
    """Return settings with the kubeconfig of `api`."""
    folders = {
        "runs_dir": tmp_path / "runs",
        "state_dir": tmp_path / "state",
        "cache_dir": tmp_path / "cache",
    }
    return Settings(kubeconfig=api.kubeconfig(tmp_path), **folders)


@pytest.fixture
def attached(settings: Settings) -> Callable[..., Outcome]:
    """Return a function that attaches to a job in `api`. Keyword arguments are the fields of Options."""

    def run(word: str = "job/train", *, selector: str = "", **options: Any) -> Outcome:
        context = RunContext(settings=settings, progress=lambda _: None)
        return attach(Target(word if not selector else "", selector), Options(**options), context)

    return run


@pytest.fixture(scope="module")
def recorder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorder's folder, as the ConfigMap lays it out in a container."""
    return lay_out(recorder.MOUNTED, tmp_path_factory.mktemp("recorder"))


@pytest.fixture
def ran(server: Server, recorder_folder: Path, tmp_path: Path) -> Run:
    """Return ran(program, **environment): run it as a rank of the run of this test."""

    def run(program: str, *, options: tuple[str, ...] = (), **environment: str) -> Ran:
        log = tmp_path / "log"
        log.touch()
        home = tmp_path / f"home{environment.get('RANK', '0')}"
        given = {
            "PYTHONPATH": str(recorder_folder),
            "HARNESS_NONCE": NONCE,
            "HARNESS_LOG": str(log),
            "PLUTO_RUN_ID": f"run-{tmp_path.name}",
            "RANK": "0",
            **environment,
        }
        done = subprocess.run(
            [sys.executable, *options, "-c", textwrap.dedent(program)],
            env=server.pluto_environment(home, **given),
            cwd=home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        return Ran(done.returncode, done.stdout, log.read_text())

    return run


@pytest.fixture
def kept(server: Server, tmp_path: Path) -> Callable[..., Points]:
    """Return kept(): the points that the tracker has in the run of this test, without the client's own."""

    def read(run_id: str = f"run-{tmp_path.name}") -> Points:
        written: dict[str, list[object]] = {"runs": [], "attachments": [], "points": [], "writers": []}
        with server.client() as client:
            collect(
                EmbeddedAudit(client),
                external_id=run_id,
                project="e2e",
                job_name=None,
                write=lambda kind, record: written[kind].append(record),
                write_points=lambda rows: written["points"].extend(rows.records()),
            )
        return {
            (point.metric, point.step): repr(point.value)  # type: ignore[attr-defined]
            for point in written["points"]
            if not point.metric.startswith("sys/")  # type: ignore[attr-defined]
        }

    return read
