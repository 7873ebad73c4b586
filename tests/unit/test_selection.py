"""Which tests are selected: nightly ones by -m or a node id, those of `make test` by tests/smoke.txt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = "tests/k8s/test_workloads.py"
LIST = """
import sys, pytest
class List:
    def pytest_collection_finish(self, session):
        for item in session.items:
            print("SELECTED", item.nodeid, *(mark.name for mark in item.iter_markers()), sep="\\t")
sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[List()]))
"""


def selected(*arguments: str) -> dict[str, set[str]]:
    """Return the markers of each test that pytest selects with these arguments, by node id."""
    command = [sys.executable, "-c", LIST, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    rows = (line.split("\t")[1:] for line in done.stdout.splitlines() if line.startswith("SELECTED\t"))
    return {name: set(marks) for name, *marks in rows}


@pytest.fixture(scope="module")
def on_clusters() -> dict[str, set[str]]:
    return selected("-m", "cluster", "tests/k8s")


def test_a_nightly_test_runs_only_if_it_is_named(on_clusters: dict[str, set[str]]) -> None:
    """Contract: -m nightly or a node id selects nightly tests; a file alone and another marker do not."""
    nightly, default = selected("-m", "nightly", FILE), selected(FILE)
    assert default
    assert nightly
    assert not default.keys() & nightly.keys()
    assert default == {name: marks for name, marks in on_clusters.items() if name.startswith(f"{FILE}::")}
    one = sorted(nightly)[0]
    assert selected(one).keys() == {one}


def test_what_make_test_and_make_test_cluster_run(on_clusters: dict[str, set[str]]) -> None:
    """Contract: each entry of tests/smoke.txt runs, and `make test` injects at most eight faults."""
    smoke = {name for name, marks in on_clusters.items() if "smoke" in marks}
    assert {line for line in (ROOT / "tests/smoke.txt").read_text().splitlines() if "::" in line} <= smoke
    assert smoke < on_clusters.keys()
    assert len([name for name in smoke if "_faults.py" in name]) <= 8
