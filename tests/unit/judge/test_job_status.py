"""TorchrunJobs whose status differs from the state of their JobSet and pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bundles
import pytest

from harness.evidence.schema.bundle import Check
from harness.judge import judge


def reported_job(
    *phases: tuple[float, str], spec: dict[str, Any] | None = None, of: bundles.Job | None = None
) -> bundles.Job:
    """Return a launch (by default a healthy one) whose TorchrunJob reported these statuses, each at its time
    in seconds."""
    job = of or bundles.healthy()
    assert job.manifest.launch is not None
    launch = job.manifest.launch.model_copy(update={"launcher": "torchrun"})
    job.manifest = job.manifest.model_copy(update={"launch": launch})
    metadata = {"name": bundles.JOBSET, "namespace": bundles.NAMESPACE, "uid": "trj-uid"}
    for when, phase in phases:
        over = {"completionTime": bundles.at(when)} if phase in ("Succeeded", "Failed", "TimedOut") else {}
        document = {"kind": "TorchrunJob", "metadata": metadata, "spec": spec or {"numNodes": 2}}
        job.see("torchrunjob", when, {**document, "status": {"phase": phase, **over}})
    return job


def status(job: bundles.Job, folder: Path) -> tuple[Check, str]:
    """Return the check and the whole verdict."""
    verdict = judge(job.write(folder))
    [found] = [check for check in verdict.checks if check.name == "job-status"]
    return found, verdict.verdict


USUAL = ((2, "Queued"), (4, "Pending"), (6, "Running"), (32, "Succeeded"))


def test_a_correct_torchrun_job_status_passes(tmp_path: Path) -> None:
    """Contract: a job whose status was correct passes, and the check shows how late it reported its end."""
    check, verdict = status(reported_job(*USUAL), tmp_path)
    assert (check.result, verdict) == ("PASS", "PASS"), check
    assert check.explanation == "The TorchrunJob was Succeeded 0.0 s after its JobSet ended"


@pytest.mark.parametrize(
    ("phases", "says"),
    [
        ([*USUAL[:3], (32, "Failed")], "JobSet is Completed, but the TorchrunJob is Failed"),
        ([*USUAL[:3], (20, "Succeeded")], "was Succeeded 12.0 s before its JobSet ended"),
        ([(1, "Queued"), (1.5, "Running"), (32, "Succeeded")], "was Running when 0 of 2 pods had started"),
        ([*USUAL, (34, "Running")], "JobSet is Completed, but the TorchrunJob is Running"),
    ],
)
def test_a_wrong_torchrun_job_status_fails(
    tmp_path: Path, phases: list[tuple[float, str]], says: str
) -> None:
    """Contract: a wrong end, an end that is reported too early, and Running without pods are each a FAIL with
    a cause."""
    check, verdict = status(reported_job(*phases), tmp_path)
    assert (check.result, check.cause, verdict) == ("FAIL", "run.status_wrong", "FAIL"), check
    assert says in check.explanation


def test_success_of_a_job_whose_rank_failed(tmp_path: Path) -> None:
    """Contract: a job of which only one of two ranks succeeded must not report Succeeded."""
    job = bundles.healthy()
    bundles.crash(job, 1)
    check, verdict = status(reported_job(*USUAL, of=job), tmp_path)
    assert (check.result, check.cause, verdict) == ("FAIL", "run.status_wrong", "FAIL"), check
    assert 1 in check.ranks


def test_elastic_job_runs_with_its_fewest(tmp_path: Path) -> None:
    """Contract: an elastic job of 1 to 2 nodes may be Running with one node."""
    job = bundles.healthy()
    job.objects = [
        (kind, seen)
        for kind, seen in job.objects
        if kind != "pod" or seen.object["metadata"]["name"] != job.pod_name(1)
    ]
    check, _ = status(reported_job(*USUAL, spec={"minNodes": 1, "maxNodes": 2}, of=job), tmp_path)
    assert check.result == "PASS", check


def test_end_that_was_not_said_in_time_is_unknown(tmp_path: Path) -> None:
    """Contract: a controller that is slow or not running has not reported a wrong status, so the check is
    UNKNOWN."""
    check, verdict = status(reported_job(*USUAL[:3]), tmp_path)
    assert (check.result, verdict) == ("UNKNOWN", "UNKNOWN"), check
    check, verdict = status(reported_job(), tmp_path / "none")
    assert (check.result, check.cause) == ("UNKNOWN", "run.evidence_missing"), check


def test_other_launches_are_not_asked(tmp_path: Path) -> None:
    """Contract: a konduktor JobSet has no TorchrunJob, so its verdict does not list the check."""
    verdict = judge(bundles.healthy().write(tmp_path))
    assert "job-status" not in {check.name for check in verdict.checks}
