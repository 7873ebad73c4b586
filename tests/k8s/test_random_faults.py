"""Drawn faults strike a real launch, and the oracle sees on its own what the tracker lacks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.context import RunContext
from harness.faults import commands
from harness.faults.inject import Injector
from harness.faults.programs.ledger import Ledger
from harness.faults.random.generator import combined, drawn
from harness.launch.konduktor.job_file import JobFile
from harness.provision.cluster import Ready
from harness.settings import Settings


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("behaviour", "says", "lost"),
    [
        ("brisk", "borne", ""),
        ("drops a point", "named", "the tracker lacks 1 of 60 points of rank 0"),
    ],
)
def test_the_oracle_names_points_that_the_tracker_lacks(
    cluster: Ready, harness_settings: Settings, behaviour: str, says: str, lost: str
) -> None:
    """Contract: a disturbance that is borne is a PASS with every point there; a lost point is seen."""
    context = RunContext(settings=harness_settings, progress=lambda text: print(text, file=sys.stderr))
    commands.undo_leftovers(context)
    job = JobFile.load(Path("jobs/multinode.yaml"))
    injector = Injector(cluster, job, harness_settings, commands.folder(harness_settings))
    name = f"random-test-{says}"
    row = injector.row(combined(name, "the JobSet", "edit", "joined", behaviour, 1, 0))
    assert (row.oracle, row.right) == (says, True), row
    assert row.lost.startswith(lost)
    assert bool(row.lost) == bool(lost), row.lost


@pytest.mark.nightly
def test_a_program_draw_is_judged_and_counted(cluster: Ready, harness_settings: Settings) -> None:
    """Contract: what the oracle says of it is in the ledger of programs."""
    context = RunContext(settings=harness_settings, progress=lambda text: print(text, file=sys.stderr))
    commands.undo_leftovers(context)
    job = JobFile.load(Path("jobs/multinode.yaml"))
    injector = Injector(cluster, job, harness_settings, commands.folder(harness_settings))
    row = injector.row(drawn(40, 19, True))
    assert row.right, row
    ledger = Ledger()
    ledger.add_draws([row])
    assert ledger.draws == {"random-40-019-program": row.oracle}
