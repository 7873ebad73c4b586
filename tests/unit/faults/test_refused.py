"""Faults of a job file leave no bundle to judge again: here each is refused as it is on a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import run
from harness.context import RunContext
from harness.core.errors import UsageError
from harness.faults.fault import Fault, catalogue
from harness.faults.fault_job import variant
from harness.faults.results import judge_row
from harness.launch.konduktor.job_file import JobFile
from harness.launch.workload_file import load as load_workload
from harness.settings import load

REFUSED = {name: fault for name, fault in catalogue().items() if fault.expect and fault.expect.exit == 64}


def refusal(fault: Fault, folder: Path) -> UsageError:
    """What `harness run` ends with, code 64, before anything is created. If it went on, it would end at the
    lock of versions, which is not there."""
    path = folder / "job.yaml"
    if not fault.inject:
        path.write_text(variant(JobFile.load(Path("jobs/multinode.yaml")), fault.job))
    settings = load(runs_dir=folder / "runs", state_dir=folder / "state", versions_file=folder / "none.toml")
    with pytest.raises(UsageError) as refused:
        run.run(load_workload(path), RunContext(settings=settings, progress=lambda _: None))
    return refused.value


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_job_file_matches_its_fault(name: str, tmp_path: Path) -> None:
    """Contract: the row of the fault is right. One fault injects: it removes the file, so none is written."""
    fault = REFUSED[name]
    row = judge_row(fault, None, 64, str(refusal(fault, tmp_path)))
    assert row.right, row.wrong
