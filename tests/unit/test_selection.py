"""Which tests are selected: nightly ones by -m or a node id, those of `make test` by tests/smoke.txt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = "tests/k8s/test_workloads.py"


def collected(*arguments: str) -> set[str]:
    """Return the node ids that pytest collects with these arguments."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    return {line for line in done.stdout.splitlines() if "::" in line}


@pytest.fixture(scope="module")
def default() -> set[str]:
    return collected(FILE)


def test_a_nightly_test_runs_only_if_it_is_named(default: set[str]) -> None:
    """Contract: -m nightly or a node id selects nightly tests, a file alone does not."""
    nightly = collected("-m", "nightly", FILE)
    assert default
    assert nightly
    assert not default & nightly
    one = sorted(nightly)[0]
    assert collected(one) == {one}
    assert collected("-m", "nightly or not nightly", FILE) == default | nightly


def test_another_marker_does_not_select_nightly_tests(default: set[str]) -> None:
    """Contract: a marker of a family selects what `make test` runs of it."""
    assert collected("-m", "cluster", FILE) == default


def test_what_make_test_and_make_test_cluster_run() -> None:
    """Contract: no test runs in both, no entry of tests/smoke.txt is nightly or gone, and `make test`
    injects at most eight faults.
    """
    smoke, others = (collected("-m", marks, "tests/k8s") for marks in ("smoke", "cluster and not smoke"))
    assert not smoke & others
    named = {line for line in (ROOT / "tests/smoke.txt").read_text().splitlines() if "::" in line}
    assert named <= smoke
    assert len([test for test in smoke if "_faults.py" in test]) <= 8
