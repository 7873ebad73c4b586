"""Fixtures of every kind of test."""

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.load_profile("default")
"""No test fails because a machine was busy."""
settings.register_profile("nightly", max_examples=500, deadline=None)
"""`make nightly`; what copies whole bundles has a number of its own (tests/unit/sample_jobs.py)."""


CLUSTERS = Path(__file__).parent / "k8s"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under `-n 2 --dist loadgroup` one process runs all tests on clusters, the other the rest, file by file.

    Tests on clusters stay in one process because they share one cluster, and some of them stop or fill what
    others need. They take longest, so they come first.
    """
    items.sort(key=lambda item: not item.path.is_relative_to(CLUSTERS))
    for item in items:
        group = "clusters" if item.path.is_relative_to(CLUSTERS) else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))


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
