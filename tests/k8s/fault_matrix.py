"""Inject faults of the catalogue on the session's cluster, and see that each got the verdict of its file.

Faults run beside each other where they can (harness/faults/catalogue_run.py).
Each test waits for its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.context import RunContext
from harness.faults import commands
from harness.faults.catalogue_run import Matrix
from harness.faults.fault_file import Fault, catalogue
from harness.faults.inject import Injector
from harness.launch.konduktor.job_file import JobFile
from harness.provision.cluster import Ready
from harness.settings import Settings


def faults_of(*targets: str) -> dict[str, Fault]:
    """Return the faults of some targets that can be injected, by name."""
    return {
        name: fault
        for name, fault in catalogue().items()
        if fault.target in targets and fault.expect is not None
    }


MAIN_JOB = ("client-drop-point", "rank-exception-before-logging")
"""Faults that `pytest -m e2e` injects: a lost point, and a rank that dies."""


def each(faults: dict[str, Fault]) -> pytest.MarkDecorator:
    """Return the parameters of a test over faults, marked as nightly and as the main job's."""

    def marks(fault: Fault) -> list[pytest.MarkDecorator]:
        nightly = [pytest.mark.nightly] if fault.nightly else []
        return nightly + ([pytest.mark.e2e] if fault.name in MAIN_JOB else [])

    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=marks(fault)) for name, fault in faults.items()]
    )


@contextmanager
def started(
    request: pytest.FixtureRequest,
    cluster: Ready,
    settings: Settings,
    parallel: int = 2,
    **controls: Any,
) -> Iterator[Matrix]:
    """Start the faults of the module's selected tests, all at once. `controls` are those of Matrix."""
    commands.undo_leftovers(RunContext(settings=settings, progress=progress))
    items = [item for item in request.session.items if item.path == request.path]
    names = [item.callspec.params["name"] for item in items if hasattr(item, "callspec")]
    known = catalogue()
    faults = [known[name] for name in names if name in known]
    job = JobFile.load(Path("jobs/multinode.yaml"))
    injector = Injector(cluster, job, settings, commands.folder(settings))
    matrix = Matrix(injector, faults, parallel, progress, **controls).start()
    try:
        yield matrix
    finally:
        matrix.stop()


def is_right(matrix: Matrix, name: str, record_property: Callable[[str, object], None]) -> None:
    """Wait for a fault, and assert its verdict, cause and ranks, and that a control passed after it."""
    row = matrix.row(name)
    for key in ("got", "visible_seconds", "bundle", "control"):
        record_property(f"harness.{key}", str(getattr(row, key)))
    assert row.right, f"{row.wrong}: expected {row.expected}, got {row.got}: {row.explanation} [{row.bundle}]"


def progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
