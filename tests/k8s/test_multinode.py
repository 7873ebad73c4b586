"""The main job on a real cluster: PASS when all is well, and the right cause for each way it is not.

One cluster serves all tests of a session; each launch has its own namespace, queue and nonce.
"""

from __future__ import annotations

import pytest

from fixtures.plugin import Launch
from harness.evidence.reader import Bundle
from harness.launchers.job_file import JobFile
from harness.run import Outcome
from harness.verdict import judge

pytestmark = pytest.mark.e2e


def faulty(job: JobFile, fault: str, rank: int) -> JobFile:
    """The main job with workers/faulty.py in place of the worker."""
    script = (
        job.document["run"]
        .rstrip()
        .replace("/workspace/multinode.py", f"/workspace/faulty.py {fault} {rank}")
    )
    return job.with_(run=script)


def failed(outcome: Outcome, cause: str, ranks: list[int] | None = None) -> str:
    """The explanation of a FAIL with this cause and these ranks; a bundle judged again says the same."""
    verdict = outcome.verdict
    assert (verdict.verdict, verdict.cause) == ("FAIL", cause), verdict.explanation
    if ranks is not None:
        assert verdict.ranks == ranks, verdict.explanation
    assert judge(Bundle.open(outcome.bundle)) == verdict
    return verdict.explanation


def test_a_healthy_job_passes(launch: Launch, job: JobFile) -> None:
    """Both ranks on their own node, every point of both in the one run."""
    outcome = launch(job)
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    assert all(check.result == "PASS" for check in outcome.verdict.checks)
    assert judge(Bundle.open(outcome.bundle)) == outcome.verdict


def test_several_processes_per_node_are_all_judged(launch: Launch, job: JobFile) -> None:
    """World size 4 on two nodes: four ranks' points, two termination messages."""
    job = job.with_(run=job.document["run"].replace("--nproc_per_node=1", "--nproc_per_node=2"))
    outcome = launch(job)
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    manifest = Bundle.open(outcome.bundle).manifest
    assert manifest is not None
    assert manifest.expected is not None
    assert manifest.expected.ranks == 4


def test_a_rank_with_another_run_id_is_a_split_run(launch: Launch, job: JobFile) -> None:
    failed(launch(faulty(job, "other_run", 1)), "unification.split_runs", [1])


def test_a_rank_that_logs_nothing_fails(launch: Launch, job: JobFile) -> None:
    failed(launch(faulty(job, "silent", 1)), "unification.rank_silent", [1])


def test_one_point_dropped_before_the_client_is_found(launch: Launch, job: JobFile) -> None:
    said = failed(launch(faulty(job, "drop_point", 1)), "unification.lost_points", [1])
    assert "loss/node1" in said
    assert "7" in said


def test_one_wrong_value_is_found(launch: Launch, job: JobFile) -> None:
    said = failed(launch(faulty(job, "wrong_value", 0)), "unification.wrong_value", [0])
    assert "loss/node0" in said


def test_a_crashed_rank_is_named_and_its_last_lines_are_kept(launch: Launch, job: JobFile) -> None:
    """The other rank's pod is deleted within a second; both logs are in the bundle to their end."""
    outcome = launch(faulty(job, "exit3", 1))
    said = failed(outcome, "rank.crashed", [1])
    assert "3" in said
    logs = {path.name: path.read_text() for path in (outcome.bundle / "logs").glob("*.log")}
    assert any("about to leave at step 7 with exit code 3" in text for text in logs.values())
    assert any("[rank 0] all-reduce" in text for text in logs.values())


def test_an_image_that_does_not_exist_fails_at_once(launch: Launch, job: JobFile) -> None:
    """At the kubelet's first failure, long before the deadline."""
    outcome = launch(job.with_(resources={"image_id": "registry.invalid/nobody/nothing:1"}))
    failed(outcome, outcome.verdict.cause or "")
    assert (outcome.verdict.cause or "").startswith("image.")
    manifest = Bundle.open(outcome.bundle).manifest
    assert manifest is not None
    observed = next(stage for stage in manifest.stages if stage.name == "observe")
    assert manifest.deadline_seconds is not None
    assert observed.seconds < manifest.deadline_seconds / 4


def test_a_queue_that_does_not_exist_is_named(launch: Launch, job: JobFile) -> None:
    labels = {**job.document["resources"]["labels"], "kueue.x-k8s.io/queue-name": "no-such-queue"}
    said = failed(launch(job.with_(resources={"labels": labels})), "queue.local_queue_missing")
    assert "no-such-queue" in said


def test_a_job_too_big_for_the_quota_is_told_so(launch: Launch, job: JobFile) -> None:
    said = failed(launch(job.with_(resources={"cpus": 64})), "admission.quota_exceeded")
    assert "cpu" in said


def test_a_stale_run_with_the_same_id_does_not_pass(launch: Launch, job: JobFile) -> None:
    """The second launch finds the first one's run under its id: old points must not make it pass."""
    first = launch(job)
    assert first.verdict.verdict == "PASS", first.verdict.explanation
    manifest = Bundle.open(first.bundle).manifest
    assert manifest is not None
    assert manifest.expected is not None
    failed(launch(job, pluto_run_id=manifest.expected.run_id), "unification.stale_run")
