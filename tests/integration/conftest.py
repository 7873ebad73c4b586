"""Fixtures for tests with real servers. Test files that need other server options define their own
fixtures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attached_jobs
import pytest
from bundle_api import BundleApi
from namespaces import World, world
from tracker_server import Server

from harness.attach.job_lookup import Target
from harness.attach.session import Options, attach
from harness.context import RunContext
from harness.report.finalize import Outcome
from harness.settings import Settings


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
