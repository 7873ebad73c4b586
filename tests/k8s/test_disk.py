"""Disks: a rank that writes too much, and removing a cluster when the harness cannot write at all."""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path

import pytest
from harness_command import containers, environment, harness

from harness.fixtures.plugin import Launch
from harness.launch.konduktor.job_file import JobFile
from harness.provision.cluster import Ready
from harness.provision.kind import pod_disk_use

pytestmark = pytest.mark.nightly
WRITES = "head -c {} /dev/zero >/tmp/filling\n"


def test_rank_that_writes_more_than_its_limit_is_evicted(launch: Launch, job: JobFile) -> None:
    """The verdict names the limit."""
    job = job.with_(run=WRITES.format("300M") + "sleep 60\n" + str(job.document["run"]))
    verdict = launch(job, ephemeral_storage="100Mi").verdict
    assert (verdict.verdict, verdict.cause) == ("FAIL", "rank.evicted")
    assert "100Mi" in verdict.explanation


def test_a_large_ended_pod_is_deleted_after_collection(
    launch: Launch, job: JobFile, cluster: Ready, capfd: pytest.CaptureFixture[str]
) -> None:
    """The job passes, and its pods are gone. Those of other launches stay."""
    small = launch(job)
    large = launch(job.with_(run=WRITES.format("1200M") + str(job.document["run"])))
    assert [small.verdict.verdict, large.verdict.verdict] == ["PASS", "PASS"], large.verdict.explanation
    assert "removed pod" in capfd.readouterr().err
    left = {pod.namespace for pod in pod_disk_use.pods(cluster.kube)}
    stays, gone = (f"e2e-{outcome.bundle.name.rpartition('-')[2]}" for outcome in (small, large))
    assert stays in left
    assert gone not in left


def test_down_works_without_a_byte_free(tmp_path: Path, small_disk: Path) -> None:
    """The state is on a disk that is full. The cluster goes all the same, and so does its state."""
    name = f"e2e-full-{secrets.token_hex(3)}"
    env = environment(
        tmp_path, HARNESS_STATE_DIR=str(small_disk), HARNESS_CLUSTER_NAME=name, HARNESS_WORKERS="0"
    )
    up = harness("up", env=env)
    assert up.process.returncode == 0, up.stderr
    filled = subprocess.run(
        ["dd", "if=/dev/zero", f"of={small_disk}/filler"], capture_output=True, text=True, check=False
    )
    assert "No space left" in filled.stderr
    removed = harness("down", env=env)
    assert removed.process.returncode == 0, removed.stderr
    assert containers(name) == []
    assert [path.name for path in (small_disk / "clusters").iterdir() if path.is_dir()] == []
