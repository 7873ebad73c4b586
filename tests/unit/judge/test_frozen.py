"""Frozen ranks are named, although they log nothing themselves."""

import bundles
import pytest
from bundles import at, cond

from harness.evidence.schema.bundle import Process, RendezvousSnapshot
from harness.judge import judge

TORCHRUN = ["/usr/bin/python3", "/usr/bin/torchrun", "--nnodes=2", "/workspace/multinode.py"]
WORKER = ["/usr/bin/python3", "-u", "/workspace/multinode.py"]


def look(job, index, torchrun="S", worker="S", error=None, when=60, at_end=True):
    processes = [
        Process(pid=9, parent=1, state=torchrun, command=TORCHRUN),
        Process(pid=20, parent=9, state=worker, command=WORKER),
    ]
    seen = [] if error else processes
    return RendezvousSnapshot(
        at=at(when), at_end=at_end, pod=job.pod_name(index), processes=seen, error=error
    )


@pytest.fixture
def judged(tmp_path):
    """Judge a job that Kueue ended after its maximum execution time. Its ranks had logged everything."""

    def judged_(job, *seen, killed=()):
        job.drop("jobset", 2)
        job.drop("workload", 2)
        over = cond("Evicted", "True", "DeactivatedDueToMaximumExecutionTimeExceeded", "over", 20)
        job.workload(20, [cond("Admitted", "True", "Admitted"), over], maximumExecutionTimeSeconds=45)
        job.jobset(21, suspend=True)
        for index in range(job.nodes):
            job.drop_pod(index, after=10)
            if index in killed:
                job.ended(index, 22, 137, message="", metadata={"deletionTimestamp": at(20)})
        job.inspections = seen
        return judge(job.write(tmp_path / "bundle"))

    return judged_


@pytest.mark.parametrize(
    ("states", "text"),
    [
        ({"torchrun": "T"}, "its torchrun (process 9) is stopped by a signal (SIGSTOP)"),
        ({"worker": "T"}, "its multinode.py (process 20) is stopped by a signal (SIGSTOP)"),
        ({"worker": "t"}, "its multinode.py (process 20) is held by a debugger"),
        ({"error": "ApiException: cannot exec in a paused state"}, "its container is paused"),
    ],
)
def test_what_is_frozen_is_named(judged, states, text):
    """Contract: the frozen rank is the cause, and not the deadline that ended the job. The verdict names the
    process."""
    job = bundles.healthy()
    verdict = judged(job, look(job, 0), look(job, 1, **states))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.hung", [1])
    assert text in verdict.explanation
    assert verdict.evidence[0] == "inspections.jsonl:2"


@pytest.mark.parametrize(("when", "cause"), [(19, "rank.hung"), (5, "admission.max_execution_time")])
def test_a_look_before_the_end(judged, when, cause):
    """Contract: at its deadline, a job's pods are deleted immediately. Therefore, an inspection before the
    deadline counts if the rank logged nothing after it.
    """
    job = bundles.healthy()
    early = look(job, 1, worker="T", when=when, at_end=False)
    gone = look(job, 1, error="ApiException: container not found")
    assert judged(job, early, gone).cause == cause


def test_a_later_look_that_shows_it_running_counts(judged):
    job = bundles.healthy()
    early = look(job, 1, worker="T", when=19, at_end=False)
    assert judged(job, early, look(job, 1)).cause == "admission.max_execution_time"


def test_which_rank_fell_silent_first_is_told(judged):
    """Contract: if nothing else explains the timeout, the verdict names the rank that had stopped logging."""
    job = bundles.healthy()
    job.truth[1] = [row.model_copy(update={"time_ms": row.time_ms - 30_000}) for row in job.rows(1)[:4]]
    explanation = judged(job).explanation
    assert "Rank 1 had logged nothing for" in explanation
    assert "ank 0 had logged nothing" not in explanation


def test_what_is_not_frozen_is_not_blamed(judged):
    """Contract: a sleeping process is not frozen."""
    job = bundles.healthy()
    assert judged(job, look(job, 0), look(job, 1)).cause == "admission.max_execution_time"


def test_a_pod_that_was_taken_down_meanwhile(judged):
    """Contract: the deletion of a pod at the end of the job is a consequence. A process that was frozen
    before is the cause, even if other processes in its pod logged lines after the end of the job.
    """
    job = bundles.healthy()
    job.logs[job.pod_name(1)].append(f"{at(23, True)} W torchrun: Received 15 death signal")
    verdict = judged(job, look(job, 0), look(job, 1, torchrun="T"), killed=(0, 1))
    assert (verdict.cause, verdict.ranks) == ("rank.hung", [1])


def test_look_at_end_is_none_at_rendezvous(judged):
    """Contract: a torchrun without ranks after the end of the job does not mean that the rank never
    joined."""
    job = bundles.healthy()
    alone = look(job, 1).model_copy(update={"processes": [Process(pid=9, parent=1, command=TORCHRUN)]})
    assert judged(job, look(job, 0), alone).cause == "admission.max_execution_time"
