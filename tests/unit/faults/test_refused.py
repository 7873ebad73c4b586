"""Faults of a job file or of texts leave no bundle to judge again: here each is refused as on a cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness import run
from harness.context import RunContext
from harness.core.errors import UsageError
from harness.faults import step_variables
from harness.faults.fault_file import Fault, catalogue
from harness.faults.fault_job import variant
from harness.faults.results import judge_row
from harness.launch.konduktor.job_file import JobFile
from harness.launch.workload_file import load as load_workload
from harness.launch.workloads import training
from harness.launch.workloads.training_spec import TrainingSpec
from harness.settings import load

REFUSED = {name: fault for name, fault in catalogue().items() if fault.expect and fault.expect.exit == 64}


def refusal(fault: Fault, folder: Path) -> UsageError:
    """What `harness run` ends with, code 64, before anything is created. If it went on, it would end at the
    lock of versions, which is not there."""
    if fault.train is not None:
        return refused_texts(fault, folder)
    path = folder / "job.yaml"
    if not fault.inject:
        path.write_text(variant(JobFile.load(Path("jobs/multinode.yaml")), fault.job))
    settings = load(runs_dir=folder / "runs", state_dir=folder / "state", versions_file=folder / "none.toml")
    with pytest.raises(UsageError) as refused:
        run.run(load_workload(path), RunContext(settings=settings, progress=lambda _: None))
    return refused.value


def refused_texts(fault: Fault, folder: Path) -> UsageError:
    """What `harness train --data` ends with, before anything is launched."""
    (step,), known = fault.inject, {"folder": str(folder), "python": sys.executable}
    subprocess.run(step_variables.command(step, known, fault.name).argv, check=True)
    assert [step_variables.render(word, known, fault.name) for word in fault.arguments] == [
        "--data",
        f"{folder}/data",
    ]
    with pytest.raises(UsageError) as refused:
        training.workload(TrainingSpec(data=folder / "data")).check(load(runs_dir=folder))
    return refused.value


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_job_file_matches_its_fault(name: str, tmp_path: Path) -> None:
    """Contract: the row of the fault is right. One fault injects: it removes the file, so none is written."""
    fault = REFUSED[name]
    row = judge_row(fault, None, 64, str(refusal(fault, tmp_path)))
    assert row.right, row.wrong
