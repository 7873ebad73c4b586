"""A worker that knows nothing of the harness gets a full verdict: examples/unchanged on a real cluster."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.evidence.io.reader import Bundle
from harness.evidence.schema.ground_truth import TruthStart
from harness.fixtures.plugin import Launch
from harness.launch.konduktor.job_file import JobFile

EXAMPLE = Path(__file__).parents[2] / "examples" / "unchanged"
DROPPING = """
import os, runpy
from pluto.sync import SyncProcessManager

enqueue = SyncProcessManager.enqueue_metrics

def drop(self, metrics, timestamp_ms, step):
    if step == 7 and os.environ["RANK"] == "1":
        metrics = {name: value for name, value in metrics.items() if not name.startswith("loss/")}
    enqueue(self, metrics, timestamp_ms, step)

SyncProcessManager.enqueue_metrics = drop
runpy.run_path("/workspace/multinode_worker.py", run_name="__main__")
"""


@pytest.fixture
def job() -> JobFile:
    """Return the example's own job file."""
    return JobFile.load(EXAMPLE / "job.yaml")


@pytest.mark.e2e
def test_an_unchanged_worker_passes(launch: Launch, job: JobFile) -> None:
    """Every check passes, and the ground truth of both ranks was recorded around their clients."""
    outcome = launch(job, scripts=EXAMPLE / "worker")
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    assert all(check.result == "PASS" for check in outcome.verdict.checks)
    assert "All 180 rows" in outcome.verdict.explanation
    bundle = Bundle.open(outcome.bundle)
    for rank in range(2):
        starts = [line for _, line in bundle.truth(rank) if isinstance(line, TruthStart)]
        assert [start.outside for start in starts] == [True]


@pytest.mark.nightly
def test_a_point_that_the_client_drops_is_named(launch: Launch, job: JobFile, tmp_path: Path) -> None:
    """The worker is unchanged. Its client takes the point and does not queue it."""
    scripts = Path(shutil.copytree(EXAMPLE / "worker", tmp_path / "worker"))
    (scripts / "dropping.py").write_text(DROPPING)
    run = job.document["run"].replace("multinode_worker.py", "dropping.py")
    outcome = launch(job.with_(run=run), scripts=scripts)
    verdict = outcome.verdict
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "unification.lost_points", [1])
    assert "rank 1: loss/node1 step 7" in verdict.explanation
    assert "to the client, but the client's queue never contained them" in verdict.explanation


@pytest.mark.nightly
def test_without_the_recorder_nothing_is_proved(launch: Launch, job: JobFile) -> None:
    """The setting is off, and the worker has no record of its own: UNKNOWN, never PASS."""
    outcome = launch(job, scripts=EXAMPLE / "worker", recorder=False)
    assert (outcome.verdict.verdict, outcome.verdict.cause) == ("UNKNOWN", "unification.truth_incomplete")
