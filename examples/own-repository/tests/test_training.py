"""Launch this repository's job on a real cluster. It passes, and it fails if it does not learn."""

from pathlib import Path

import pytest

from harness.launch.konduktor.job_file import JobFile


@pytest.fixture
def job():
    return JobFile.load(Path("job.yaml"))


def test_training(launch, job):
    verdict = launch(job).verdict
    assert verdict.verdict == "PASS", verdict.explanation
    assert "user.loss-falls" in [check.name for check in verdict.checks]


def test_training_that_learns_nothing(launch, job):
    verdict = launch(job.with_(envs={"LEARNING_RATE": "0"})).verdict
    assert (verdict.verdict, verdict.cause) == ("FAIL", "user.loss-falls"), verdict.explanation


def test_the_queue_is_active(kind_cluster):
    """Use pytest-kind's fixture, which accesses the same cluster."""
    status = '{.status.conditions[?(@.type=="Active")].status}'
    assert kind_cluster.kubectl("get", "clusterqueue", "cluster-queue", "-o", f"jsonpath={status}") == "True"
