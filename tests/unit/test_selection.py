"""Which tests are selected: nightly ones by -m or a node id, those of `make test` by tests/smoke.txt."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = "tests/k8s/test_workloads.py"
NIGHTLY_TEST = f"{FILE}::test_a_queue_that_does_not_exist[statefulset]"
LIST = """
import json, sys, pytest
class List:
    def pytest_collection_finish(self, session):
        found = {item.nodeid: [mark.name for mark in item.iter_markers()] for item in session.items}
        print("SELECTED", json.dumps(found))
for arguments in json.loads(sys.argv[1]):
    pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *arguments], plugins=[List()])
"""
ARGUMENTS = {
    "cluster": ["-m", "cluster", "tests/k8s"],
    "nightly": ["-m", "nightly", FILE],
    "default": [FILE],
    "one": [NIGHTLY_TEST],
}


@pytest.fixture(scope="module")
def selected() -> dict[str, dict[str, set[str]]]:
    """Name of ARGUMENTS → the markers of each test that pytest selects with these arguments, by node id."""
    command = [sys.executable, "-c", LIST, json.dumps(list(ARGUMENTS.values()))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("SELECTED ")]
    found = [json.loads(line.removeprefix("SELECTED ")) for line in lines]
    rows = [{name: set(marks) for name, marks in each.items()} for each in found]
    return dict(zip(ARGUMENTS, rows, strict=True))


def test_a_nightly_test_runs_only_if_it_is_named(selected: dict[str, dict[str, set[str]]]) -> None:
    """Contract: -m nightly or a node id selects nightly tests; a file alone and another marker do not."""
    nightly, default, on_clusters = (selected[name] for name in ("nightly", "default", "cluster"))
    assert default
    assert NIGHTLY_TEST in nightly
    assert not default.keys() & nightly.keys()
    assert default == {name: marks for name, marks in on_clusters.items() if name.startswith(f"{FILE}::")}
    assert selected["one"].keys() == {NIGHTLY_TEST}


def test_what_make_test_and_make_test_cluster_run(selected: dict[str, dict[str, set[str]]]) -> None:
    """Contract: each entry of tests/smoke.txt runs, and `make test` injects at most eight faults."""
    on_clusters = selected["cluster"]
    smoke = {name for name, marks in on_clusters.items() if "smoke" in marks}
    assert {line for line in (ROOT / "tests/smoke.txt").read_text().splitlines() if "::" in line} <= smoke
    assert smoke < on_clusters.keys()
    assert len([name for name in smoke if "_faults.py" in name]) <= 8
