"""Every fault of harness/faults/cases gets the verdict, cause and ranks that its file says, and is undone.

Faults run beside each other where they can (harness/faults/matrix.py), and each test waits for its own.
Faults that `make test` leaves out are marked nightly (docs/tests.md). The ledger and the bundles are in
runs/faults-*/.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.context import RunContext
from harness.faults import commands
from harness.faults.fault import catalogue
from harness.faults.inject import Injector
from harness.faults.matrix import Matrix
from harness.launch.konduktor.job_file import JobFile
from harness.provision.cluster import Ready
from harness.settings import Settings

pytestmark = pytest.mark.faults
FAULTS = {
    name: fault
    for name, fault in catalogue().items()
    if fault.expect is not None
    and fault.target not in ("network", "acceptance")  # test_netcheck_faults.py, test_acceptance.py
}
ALONE_BETWEEN_CONTROLS = 3
"""Faults that run alone between two controls. `make faults` has a control after each of them."""


def progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


@pytest.fixture(scope="module")
def matrix(request: pytest.FixtureRequest, cluster: Ready, harness_settings: Settings) -> Iterator[Matrix]:
    """The faults of the selected tests, all started at once."""
    commands.undo_left(RunContext(settings=harness_settings, progress=progress))
    items = [item for item in request.session.items if item.path == request.path]
    names = [item.callspec.params["name"] for item in items if hasattr(item, "callspec")]
    job = JobFile.load(Path("jobs/multinode.yaml"))
    injector = Injector(cluster, job, harness_settings, commands.folder(harness_settings))
    started = Matrix(
        injector,
        [FAULTS[name] for name in names],
        int(os.environ.get("HARNESS_FAULTS_PARALLEL", "2")),
        progress,
        alone_between_controls=ALONE_BETWEEN_CONTROLS,
    ).start()
    yield started
    started.stop()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] if fault.nightly else [])
        for name, fault in FAULTS.items()
    ],
)
def test_a_fault_gets_its_verdict_and_is_undone(
    matrix: Matrix, name: str, record_property: Callable[[str, object], None]
) -> None:
    row = matrix.row(name)
    for key in ("got", "visible_seconds", "bundle", "control"):
        record_property(f"harness.{key}", str(getattr(row, key)))
    assert row.right, f"{row.wrong}: expected {row.expected}, got {row.got}: {row.explanation} [{row.bundle}]"
