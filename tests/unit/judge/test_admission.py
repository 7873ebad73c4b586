"""Jobs that Kueue does not admit, evicts, or ends after their maximum execution time."""

import bundles
import pytest
from bundles import at, cond, stuck

from harness.core.clock import seconds
from harness.evidence.schema.ground_truth import TruthRow


def never_ran(job: bundles.Job) -> bundles.Job:
    """Return a healthy job without pods, data from ranks and later states of its objects."""
    for kind in ("pod", "jobset", "workload"):
        job.drop(kind, 0 if kind == "pod" else 1)
    job.truth, job.logs, job.runs, job.attachments, job.points = {}, {}, [], [], []
    return job


def test_pods_that_no_node_could_take(judged):
    """Contract: the verdict names all ranks without a node, the resources that they request, and the nodes'
    resources."""
    job = stuck(bundles.healthy())
    unschedulable = bundles.cond("PodScheduled", "False", "Unschedulable", "0/1 nodes: 1 Insufficient cpu.")
    node = {"metadata": {"name": "n1", "uid": "n1"}, "spec": {}, "status": {"allocatable": {"cpu": "2"}}}
    job.see("node", 1, node)
    for index in range(2):
        job.drop_pod(index)
        job.pod(index, 9, "Pending", node=False, conditions=[unschedulable])
    for kind, seen in job.objects:
        if kind == "pod":
            seen.object["spec"]["containers"] = [{"resources": {"requests": {"cpu": "3"}}}]
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("scheduling.unschedulable", [0, 1])
    assert "a pod requests 3 cpu; the most that a node has is 2 (the scheduler: Unsch" in verdict.explanation


def test_a_taint_of_a_flavor_asks_for_a_toleration(judged):
    """Contract: the advice names the places for a toleration: the job or the ResourceFlavor."""
    job = never_ran(bundles.healthy())
    message = "couldn't assign flavors to pod set workers: untolerated taint {gpu NoSchedule} in flavor a"
    job.workload(2, [cond("QuotaReserved", "False", "Pending", message)])
    verdict = judged(job)
    assert verdict.cause == "admission.no_flavor"
    assert any("add a toleration for the taint to the pod template" in step for step in verdict.next)


@pytest.mark.parametrize(
    ("message", "reason", "cause"),
    [
        ("LocalQueue user-queue doesn't exist", "Inadmissible", "queue.local_queue_missing"),
        ("ClusterQueue cq doesn't exist", "Misconfigured", "queue.cluster_queue_missing"),
        ("ClusterQueue cq is inactive", "Suspended", "queue.inactive"),
        (
            "couldn't assign flavors to pod set workers: insufficient quota for cpu in flavor default, "
            "previously considered podsets requests (0) + current podset request (64) > maximum capacity (8)",
            "Pending",
            "admission.quota_exceeded",
        ),
        (
            "insufficient unused quota for cpu in flavor default, 2 more needed",
            "Pending",
            "admission.pending",
        ),
        ("resource nvidia.com/gpu unavailable in ClusterQueue", "Pending", "admission.resource_not_covered"),
        ("", "", "admission.not_seen"),
    ],
)
def test_an_admission_failure_quotes_the_kueue_message(judged, message, reason, cause):
    """Contract: the explanation contains Kueue's message."""
    job = never_ran(bundles.healthy())
    job.workload(2, [cond("QuotaReserved", "False", reason, message)] if reason else [])
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", cause)
    assert message in verdict.explanation
    later = {c.explanation for c in verdict.checks if c.name in {"scheduling", "rank-exit", "values"}}
    assert not reason or later == {"Not judged: the job was not admitted"}


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("DeactivatedDueToMaximumExecutionTimeExceeded", "admission.max_execution_time"),
        ("Preempted", "admission.preempted"),
        ("PodsReadyTimeout", "admission.pods_ready_timeout"),
        ("Deactivated", "admission.deactivated"),
        ("ClusterQueueStopped", "admission.queue_stopped"),
        ("SomethingNew", "admission.evicted"),
    ],
)
def test_a_kueue_eviction_causes_the_pod_deletions(judged, reason, cause):
    """Contract: an eviction is the cause, and the deletion of its pods is a consequence."""
    job = stuck(bundles.healthy(), keep=3)
    job.workload(20, [cond("Admitted", "True", "Admitted"), cond("Evicted", "True", reason, "told so", 20)])
    for index in range(2):
        job.pod(
            index, 20.5, "Running", {"running": {}}, metadata={"deletionTimestamp": at(20)}, type_="DELETED"
        )
    job.jobset(21, suspend=True)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == (cause, [0, 1])
    assert "rank.pod_deleted" in verdict.consequences[0]


@pytest.mark.parametrize(
    ("limit", "wait", "lowered"),
    [(555, 600.0, True), (300, 600.0, False), (45, 60.0, True), (555, None, False), (30, 40.0, False)],
)
def test_who_set_the_time_that_was_over(judged, limit, wait, lowered):
    """Contract: if the harness lowered the time limit, the verdict does not advise raising it in the job
    file."""
    job = stuck(bundles.healthy(), keep=3)
    job.truth = {}
    job.manifest = job.manifest.model_copy(update={"deadline_seconds": wait})
    over = cond("Evicted", "True", "DeactivatedDueToMaximumExecutionTimeExceeded", "over", 20)
    job.workload(20, [cond("Admitted", "True", "Admitted"), over], maximumExecutionTimeSeconds=limit)
    job.jobset(21, suspend=True)
    verdict = judged(job)
    assert verdict.cause == "admission.max_execution_time"
    assert f"over ({limit} s)" in verdict.explanation
    assert ("raise --wait" in verdict.explanation) is lowered


@pytest.mark.parametrize(("ago", "longer"), [(45, False), (10, True)])
def test_a_longer_wait_is_not_advised_after_complete_records(judged, ago, longer):
    """Contract: if all ranks completed their records long before the time limit, more time would not help. If
    they completed them just before the limit, the verdict advises a longer wait.
    """
    job = stuck(bundles.healthy(), keep=3)
    over = cond("Evicted", "True", "DeactivatedDueToMaximumExecutionTimeExceeded", "over", 20)
    last = int(((seconds(over["lastTransitionTime"]) or 0) - ago) * 1000)
    job.truth = {
        rank: [
            line.model_copy(update={"time_ms": last}) if isinstance(line, TruthRow) else line
            for line in lines
        ]
        for rank, lines in bundles.healthy().truth.items()
    }
    job.manifest = job.manifest.model_copy(update={"deadline_seconds": 600.0})
    job.workload(20, [cond("Admitted", "True", "Admitted"), over], maximumExecutionTimeSeconds=555)
    job.jobset(21, suspend=True)
    verdict = judged(job)
    assert verdict.cause == "admission.max_execution_time"
    assert ("Ranks 0 and 1 had logged everything 45 s before" in verdict.explanation) is not longer
    assert ("raise --wait" in verdict.explanation) is longer


@pytest.mark.parametrize(
    ("containers", "rows", "text"),
    [
        (2, 5, None),
        (
            2,
            15,
            "the last container started 2 s after the job was admitted, and it took",
        ),
        (
            2,
            None,
            "the last container started 2 s after the job was admitted, and ranks 0 and 1 had logged nothing",
        ),
        (None, None, "the containers of ranks 0 and 1 had not started"),
    ],
)
def test_an_eviction_says_where_the_time_went(judged, containers, rows, text):
    """Contract: if half of the job's time was over before all ranks had logged a row, the verdict shows how
    long it took to start the containers and to log the first rows.
    """
    job = stuck(bundles.healthy(), keep=3 if containers else 2)
    begun = seconds(cond("Admitted", "True", "Admitted")["lastTransitionTime"]) or 0.0
    for index in range(2):
        started = {} if containers is None else {"running": {"startedAt": at(3 + containers)}}
        job.pod(index, 6, "Pending" if containers is None else "Running", started)
    job.truth = {
        rank: [
            line.model_copy(update={"time_ms": int((begun + rows) * 1000)})
            if isinstance(line, TruthRow)
            else line
            for line in lines
        ]
        for rank, lines in (bundles.healthy().truth.items() if rows else ())
    }
    over = cond("Evicted", "True", "DeactivatedDueToMaximumExecutionTimeExceeded", "over", 20)
    job.workload(20, [cond("Admitted", "True", "Admitted"), over], maximumExecutionTimeSeconds=20)
    job.jobset(21, suspend=True)
    verdict = judged(job)
    assert verdict.cause == "admission.max_execution_time"
    explanation = verdict.explanation.lower()
    assert text in explanation if text else "first row" not in explanation


@pytest.mark.parametrize("readmitted", [False, True])
def test_time_of_admitted_job_counts_from_its_last_admission(judged, readmitted):
    """Contract: ranks that are not expected to log, and earlier admissions of the job, are ignored."""
    job = stuck(bundles.healthy(), keep=3)
    expected = job.manifest.expected.model_copy(update={"ranks_that_log": [0]})
    job.manifest = job.manifest.model_copy(update={"expected": expected})
    first = 12 if readmitted else 3
    for index in range(2):
        job.pod(index, first + 3, "Running", {"running": {"startedAt": at(first + 1)}})
    begun = seconds(cond("Admitted", "True", "Admitted", "", first)["lastTransitionTime"]) or 0.0
    job.truth = {
        0: [
            line.model_copy(update={"time_ms": int((begun + 2) * 1000)})
            if isinstance(line, TruthRow)
            else line
            for line in bundles.healthy().truth[0]
        ]
    }
    over = cond("Evicted", "True", "DeactivatedDueToMaximumExecutionTimeExceeded", "over", 20)
    job.workload(20, [cond("Admitted", "True", "Admitted", "", first), over], maximumExecutionTimeSeconds=8)
    job.jobset(21, suspend=True)
    verdict = judged(job)
    assert verdict.cause == "admission.max_execution_time"
    assert "after the job was admitted" not in verdict.explanation


def test_the_workload_that_took_the_quota_is_named(judged):
    """Contract: Kueue's message contains only the Workload's UID, and the verdict adds its name."""
    job = stuck(bundles.healthy(), keep=3)
    other = {"name": "urgent", "namespace": bundles.NAMESPACE, "uid": "0f1e-urgent"}
    job.see("workload", 18, {"kind": "Workload", "metadata": other, "spec": {}, "status": {}})
    text = "Preempted to accommodate a workload (UID: 0f1e-urgent, JobUID: UNKNOWN)"
    job.workload(20, [cond("Admitted", "True", "Admitted"), cond("Evicted", "True", "Preempted", text, 20)])
    job.jobset(21, suspend=True)
    verdict = judged(job)
    assert verdict.cause == "admission.preempted"
    assert "This UID belongs to Workload urgent" in verdict.explanation


def test_an_eviction_after_a_crash_is_not_the_cause(judged):
    """Contract: if there is an eviction and a crash, the earlier one is the cause."""
    job = bundles.healthy()
    bundles.crash(job, 1, when=12)
    job.workload(20, [cond("Admitted", "True", "Admitted"), cond("Evicted", "True", "Preempted", "", 20)])
    assert judged(job).cause == "rank.crashed"
