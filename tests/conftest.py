"""Fixtures of every kind of test."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

settings.register_profile("default", max_examples=20, deadline=None, derandomize=True)
settings.load_profile("default")
"""The same examples each time, and no test fails because a machine was busy."""
settings.register_profile("nightly", max_examples=500, deadline=None)
"""`make nightly` searches new examples. What copies bundles has a number of its own (unit/sample_jobs.py)."""


CLUSTERS, INTEGRATION = "tests/k8s/", "tests/integration/"
SMOKE = {line for line in (Path(__file__).parent / "smoke.txt").read_text().splitlines() if "::" in line}

sys.dont_write_bytecode = False
"""Let pytest cache the test modules that it rewrites, also under PYTHONDONTWRITEBYTECODE. With this
cache, each process collects the tests in half the time."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts `make test &` so, and every program here would be deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHELL = re.compile(
    "(NO_|FORCE_|PY_|CLI)COLORS?|CLICOLOR_FORCE|COLUMNS|LINES|TTY_.*|GITHUB_.*|PYTEST_(ADDOPTS|PLUGINS)"
)
"""Variables of a terminal, a workflow or a person that change what the programs under test print."""

OWN_CLUSTERS = ("test_interruption.py", "test_reader.py", "test_registry.py")
"""Tests that make clusters of their own, and do not disturb the others'."""
LAST = (
    "test_acceptance.py",
    "test_acceptance_container.py",
    "test_acceptance_screen.py",
    "test_behind_proxy.py",
    "test_existing.py",
    "test_gpu.py",
    "test_hosted.py",
    "test_netcheck.py",
    "test_netcheck_faults.py",
    "test_node_marks.py",
    "test_programs.py",
    "test_secrets.py",
    "test_training.py",
    "test_training_container.py",
    "test_training_faults.py",
    "test_training_volumes.py",
    "test_workloads.py",
)
"""Tests on a cluster that can run beside the others, because each process has a cluster of its own."""


class ClustersApart(LoadScopeScheduling):
    """One process runs the tests on its cluster, the others the rest, file by file.

    Tests on one cluster stay in one process, because some of them stop or fill what others need. Those of
    LAST come at the end, for the process that is free: an idle cluster costs a third of a core. The tests of
    `make test` share one cluster.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if not file.startswith("tests/k8s/") or file.endswith(OWN_CLUSTERS):
            return file
        smoke = "smoke or" in self.config.option.markexpr
        return "last" if file.endswith(LAST) and not smoke else "cluster"


def pytest_sessionstart() -> None:
    """Remove the variables of SHELL. pytest and its plugins have read them by now."""
    for name in [name for name in os.environ if SHELL.fullmatch(name)]:
        del os.environ[name]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ClustersApart:
    """Schedule the tests of `-n 2`."""
    return ClustersApart(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests, deselect nightly ones unless -m or a node id selects them, and order the rest.

    Tests on clusters come first, because they take longest, but LAST at the end. Of the others, files with
    real servers and browsers come first: a long file at the end has one process wait for the other.
    """
    for item in items:
        if item.nodeid.startswith(CLUSTERS):
            item.add_marker("cluster")
        if item.nodeid in SMOKE:
            item.add_marker("smoke")
    named = "nightly" in config.option.markexpr or any("::" in argument for argument in config.args)
    if not named:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("nightly")])
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]

    def order(item: pytest.Item) -> int:
        if item.nodeid.startswith(CLUSTERS):
            return 3 if item.path.name in LAST else 0
        return 1 if item.nodeid.startswith(INTEGRATION) else 2

    items.sort(key=order)


@pytest.fixture
def unused_tcp_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], capture_output=True, check=False
    ).returncode:
        pytest.skip("mount is for root")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)
