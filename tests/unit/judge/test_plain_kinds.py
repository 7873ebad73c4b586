"""A Job or a StatefulSet is judged like a JobSet: by its Workload, if it is in a queue, and by its end."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import bundles
import pytest
from bundles import at, cond

from harness.core.deadlines import Budget
from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Check, Stage, Verdict
from harness.judge import judge
from harness.judge.change import Change
from harness.judge.context import Facts
from harness.judge.points import elastic

NAME = "trainer"
GATE = [{"name": "kueue.x-k8s.io/admission"}]
MANAGED = {"kueue.x-k8s.io/managed": "true"}
PENDING = cond("QuotaReserved", "False", "Pending", "LocalQueue user-queue doesn't exist", 1)
ADMITTED = [cond("QuotaReserved", "True", "QuotaReserved"), cond("Admitted", "True", "Admitted")]


def queued(kind: str) -> bundles.Job:
    """Return a launch of this kind in a queue, without any recorded pods or Workloads."""
    job = bundles.healthy()
    job.objects = []
    job.truth, job.logs, job.points, job.runs, job.attachments = {}, {}, [], [], []
    assert job.manifest.launch is not None
    launch = job.manifest.launch.model_copy(
        update={"kind": kind, "object_name": NAME, "launcher": "apply", "held": kind == "StatefulSet"}
    )
    job.manifest = job.manifest.model_copy(update={"launch": launch})
    return job


def launched(
    job: bundles.Job, kind: str, when: float, conditions: list[dict[str, Any]] | None = None, **spec: Any
) -> None:
    metadata = {"name": NAME, "namespace": bundles.NAMESPACE, "uid": bundles.UID}
    status = {"conditions": conditions or [], "startTime": at(1)}
    job.see(kind.lower(), when, {"kind": kind, "metadata": metadata, "spec": spec, "status": status})


def workload(job: bundles.Job, kind: str, when: float, conditions: list[dict[str, Any]]) -> None:
    owner = {"kind": kind, "name": NAME, "uid": bundles.UID}
    metadata = {"name": f"{kind.lower()}-{NAME}-a1b2c", "uid": "wl", "ownerReferences": [owner]}
    spec = {"queueName": bundles.QUEUE}
    job.see("workload", when, {"metadata": metadata, "spec": spec, "status": {"conditions": conditions}})


def pods(
    job: bundles.Job,
    when: float,
    labels: dict[str, str],
    phase: str = "Pending",
    deleted: float | None = None,
    **spec: Any,
) -> None:
    gone = (
        {} if deleted is None else {"deletionTimestamp": at(deleted + 30), "deletionGracePeriodSeconds": 30}
    )
    for index in range(job.nodes):
        metadata = {
            "name": f"{NAME}-{index}",
            "uid": f"pod-{index}",
            "creationTimestamp": at(1),
            "labels": {"apps.kubernetes.io/pod-index": str(index), **labels},
            "ownerReferences": [{"uid": bundles.UID}],
            **gone,
        }
        ended = {"exitCode": 143 if gone else 1, "reason": "Error", "finishedAt": at(when)}
        states: dict[str, dict[str, Any]] = {"Running": {"running": {"startedAt": at(5)}}}
        state = (states | {"Failed": {"terminated": ended}}).get(phase, {"waiting": {}})
        gated = cond("PodScheduled", "False", "SchedulingGated", "Scheduling is blocked")
        status = {
            "phase": phase,
            "conditions": [gated] if "schedulingGates" in spec else [],
            "containerStatuses": [{"name": bundles.CONTAINER, "state": state}],
        }
        job.see("pod", when, {"metadata": metadata, "spec": spec, "status": status})


def judged(job: bundles.Job, tmp_path: Path) -> tuple[Verdict, dict[str, Check]]:
    verdict = judge(job.write(tmp_path / "bundle"))
    return verdict, {check.name: check for check in verdict.checks}


@pytest.mark.parametrize("kind", ["Job", "StatefulSet"])
def test_what_kueue_does_not_admit(tmp_path: Path, kind: str) -> None:
    """Contract: Kueue's message determines the cause, and gated pods are neither unschedulable nor
    missing."""
    job = queued(kind)
    launched(job, kind, 1, suspend=True) if kind == "Job" else launched(job, kind, 1)
    if kind == "StatefulSet":
        pods(job, 1.2, MANAGED, schedulingGates=GATE)
    workload(job, kind, 1.5, [PENDING])
    verdict, checks = judged(job, tmp_path)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "queue.local_queue_missing"), verdict.explanation
    assert verdict.consequences == []
    assert checks["rank-pods"].explanation == "Not judged: the job was not admitted"
    assert checks["scheduling"].result == "UNKNOWN"


@pytest.mark.parametrize("kind", ["Job", "StatefulSet"])
def test_what_kueue_admits(tmp_path: Path, kind: str) -> None:
    """Contract: for each kind, the Workload is found by its owner, and the checks pass because of it."""
    job = queued(kind)
    launched(job, kind, 1, suspend=True)
    workload(job, kind, 1.5, [PENDING])
    workload(job, kind, 2, ADMITTED)
    pods(job, 3, MANAGED, "Running", nodeName="e2e-worker")
    _, checks = judged(job, tmp_path)
    assert checks["queue"].explanation == f"Queue {bundles.QUEUE} accepted the job"
    assert checks["admission"].explanation == f"Workload {kind.lower()}-{NAME}-a1b2c was admitted"
    assert checks["rank-pods"].result == "PASS"


@pytest.mark.parametrize("kind", ["Job", "StatefulSet"])
def test_a_kind_that_kueue_does_not_manage(tmp_path: Path, kind: str) -> None:
    """Contract: pods that ran without a Workload were not admitted by Kueue, even if everything else is
    healthy."""
    job = queued(kind)
    launched(job, kind, 1)
    pods(job, 3, {}, "Running", nodeName="e2e-worker")
    verdict, checks = judged(job, tmp_path)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "queue.kind_not_managed"), verdict.explanation
    assert f"{kind} {NAME} names queue {bundles.QUEUE}" in checks["admission"].explanation


@pytest.mark.parametrize("kind", ["Job", "StatefulSet"])
def test_a_workload_that_is_not_in_the_evidence(tmp_path: Path, kind: str) -> None:
    """Contract: a job that Kueue held back had a Workload. If it is not in the bundle, evidence is missing,
    so the verdict is UNKNOWN."""
    job = queued(kind)
    launched(job, kind, 1, suspend=kind == "Job")
    pods(job, 3, MANAGED, "Running", nodeName="e2e-worker")
    _, checks = judged(job, tmp_path)
    assert (checks["admission"].result, checks["admission"].cause) == ("UNKNOWN", "run.evidence_missing")


@pytest.mark.parametrize("kind", ["Job", "StatefulSet"])
def test_kueue_that_makes_no_workload(tmp_path: Path, kind: str) -> None:
    """Contract: if a job is suspended but has no Workload, Kueue is not reconciling."""
    job = queued(kind)
    launched(job, kind, 1, suspend=kind == "Job")
    if kind == "StatefulSet":
        pods(job, 1.2, MANAGED, schedulingGates=GATE)
    verdict, _ = judged(job, tmp_path)
    assert verdict.cause == "controllers.kueue_not_reconciling", verdict.explanation
    assert (
        f"{kind} {NAME} waits for queue {bundles.QUEUE}, but Kueue created no Workload" in verdict.explanation
    )


def test_pods_whose_gate_stays(tmp_path: Path) -> None:
    """Contract: if pods are still gated after admission, Kueue is not reconciling. The pods do not count as
    missing."""
    job = queued("StatefulSet")
    launched(job, "StatefulSet", 1)
    pods(job, 1.2, MANAGED, schedulingGates=GATE)
    workload(job, "StatefulSet", 2, ADMITTED)
    _, checks = judged(job, tmp_path)
    assert checks["rank-pods"].cause == "controllers.kueue_not_reconciling"
    assert "behind a scheduling gate" in checks["rank-pods"].explanation


@pytest.mark.parametrize("deleted", [None, 24.2, 25])
@pytest.mark.parametrize(
    ("limit", "advice"),
    [
        (int(Budget(150).job), "limit follows from --wait 150"),
        (20, "activeDeadlineSeconds (20 s)"),
    ],
)
def test_a_job_that_reaches_its_own_deadline(
    tmp_path: Path, limit: int, advice: str, deleted: float | None
) -> None:
    """Contract: ranks that Kubernetes ends at the Job's deadline did not crash, and no other client deleted
    their pods. On a slow cluster, such ranks log a line of torchrun's stack. The Job controller deletes the
    pods before it writes the reason to the Job's status.
    """
    job = queued("Job")
    assert job.manifest.expected is not None
    expected = job.manifest.expected.model_copy(update={"queue": None, "min_nodes_used": 1})
    job.manifest = job.manifest.model_copy(update={"expected": expected, "deadline_seconds": 150.0})
    message = "Job was active longer than specified deadline"
    target = cond("FailureTarget", "True", "DeadlineExceeded", message, 25)
    launched(job, "Job", 1, activeDeadlineSeconds=limit)
    pods(job, 3, {}, "Running", nodeName="e2e-worker")
    if deleted is not None:
        pods(job, deleted, {}, "Running", deleted, nodeName="e2e-worker")
    launched(job, "Job", 25, [target], activeDeadlineSeconds=limit)
    pods(job, 28, {}, "Failed", deleted, nodeName="e2e-worker")
    failed = cond("Failed", "True", "DeadlineExceeded", message, 30)
    launched(job, "Job", 30, [target, failed], activeDeadlineSeconds=limit)
    verdict, _ = judged(job, tmp_path)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "run.timed_out", [0, 1])
    assert advice in verdict.explanation


@pytest.mark.parametrize("reported", [True, False])
def test_a_job_whose_deadline_is_deleting_its_pods(tmp_path: Path, reported: bool) -> None:
    """Contract: the deletion is not attributed to other clients, even while the pods are terminating or
    before the Job reports its deadline."""
    job = queued("Job")
    assert job.manifest.expected is not None
    expected = job.manifest.expected.model_copy(update={"queue": None, "min_nodes_used": 1})
    job.manifest = job.manifest.model_copy(update={"expected": expected, "deadline_seconds": 150.0})
    launched(job, "Job", 1, activeDeadlineSeconds=10)
    pods(job, 3, {}, "Running", nodeName="e2e-worker")
    pods(job, 11.2, {}, "Running", 11.2, nodeName="e2e-worker")
    if reported:
        target = cond("FailureTarget", "True", "DeadlineExceeded", "Job was active longer", 11)
        launched(job, "Job", 12, [target], activeDeadlineSeconds=10)
    _, checks = judged(job, tmp_path)
    assert "was deleted" not in checks["disturbances"].explanation
    assert "was deleted" not in checks["rank-exit"].explanation


def test_a_pod_that_somebody_deletes_well_before_the_deadline(tmp_path: Path) -> None:
    """Contract: the deletion is named, although the Job then ends at its deadline."""
    job = queued("Job")
    assert job.manifest.expected is not None
    expected = job.manifest.expected.model_copy(update={"queue": None, "min_nodes_used": 1})
    job.manifest = job.manifest.model_copy(update={"expected": expected, "deadline_seconds": 150.0})
    launched(job, "Job", 1, activeDeadlineSeconds=20)
    pods(job, 3, {}, "Running", nodeName="e2e-worker")
    pods(job, 9, {}, "Running", 9, nodeName="e2e-worker")
    pods(job, 10, {}, "Failed", 9, nodeName="e2e-worker")
    target = cond("FailureTarget", "True", "DeadlineExceeded", "Job was active longer", 25)
    launched(job, "Job", 25, [target], activeDeadlineSeconds=20)
    _, checks = judged(job, tmp_path)
    assert checks["rank-exit"].cause == "rank.pod_deleted"


@pytest.mark.parametrize("stage", ["observe", "launch"])
def test_harness_deletes_stateful_set_that_user_interrupted(tmp_path: Path, stage: str) -> None:
    """Contract: the harness's own deletion is not reported as a deletion or failure of ranks."""
    job = queued("StatefulSet")
    assert job.manifest.expected is not None
    expected = job.manifest.expected.model_copy(update={"queue": None, "min_nodes_used": 1})
    launched(job, "StatefulSet", 1)
    pods(job, 3, {}, "Running", nodeName="e2e-worker")
    pods(job, 21, {}, "Running", deleted=21, nodeName="e2e-worker")
    pods(job, 23, {}, "Failed", deleted=21, nodeName="e2e-worker")
    cut = {"started_at": at(0.5, True), "seconds": 19.5, "ok": False, "error": "SIGINT"}
    stages = [*job.manifest.stages[:-1], Stage.model_validate({"name": stage, **cut})]
    collect = Stage(name="collect", started_at=at(20, True), seconds=4)
    job.manifest = job.manifest.model_copy(
        update={"stages": [*stages, collect], "interrupted": "SIGINT", "expected": expected}
    )
    bundle = job.write(tmp_path / "bundle")
    exits = [
        {"at": at(22, True), "pod": f"{NAME}-{index}", "uid": f"pod-{index}", "exit_code": 143}
        for index in range(job.nodes)
    ]
    lines = [json.dumps({**one, "container": bundles.CONTAINER}) for one in exits]
    (bundle.path / "exits.jsonl").write_text("\n".join(lines) + "\n")
    verdict = judge(bundle)
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "run.interrupted"), verdict.explanation
    assert not [line for line in verdict.consequences if "deleted" in line or "not_completed" in line]


@pytest.mark.parametrize(("ended", "cause"), [(41, "run.timed_out"), (20, "rank.killed")])
def test_an_exit_after_the_deadline_is_a_timeout(tmp_path: Path, ended: float, cause: str) -> None:
    """Contract: only a command that ended before the deadline, at 40 s, accuses its rank."""
    job = queued("StatefulSet")
    assert job.manifest.expected is not None
    expected = job.manifest.expected.model_copy(update={"queue": None})
    job.manifest = job.manifest.model_copy(update={"expected": expected})
    launched(job, "StatefulSet", 1, replicas=2)
    pods(job, 3, {}, "Running", nodeName="e2e-worker")
    bundles.timed_out(job)
    bundle = job.write(tmp_path / "bundle")
    lines = [
        {"at": at(ended), "pod": f"{NAME}-{index}", "container": bundles.CONTAINER, "exit_code": 137}
        for index in range(job.nodes)
    ]
    (bundle.path / "exits.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    verdict = judge(Bundle.open(bundle.path))
    assert (verdict.verdict, verdict.cause) == ("FAIL", cause), verdict.explanation


@pytest.mark.parametrize(
    ("policy", "ready"), [("OrderedReady", False), ("Parallel", False), ("OrderedReady", True)]
)
def test_a_pod_that_its_stateful_set_creates_after_another(tmp_path: Path, policy: str, ready: bool) -> None:
    """Contract: the pod that is not Ready is named, with the policy that lets all of them start together."""
    job = queued("StatefulSet")
    job.manifest = job.manifest.model_copy(
        update={"expected": job.manifest.expected.model_copy(update={"queue": None})}
    )
    launched(job, "StatefulSet", 1, podManagementPolicy=policy)
    job.nodes = 1
    pods(job, 6, {}, "Running")
    job.objects[-1][1].object["status"]["conditions"] = [cond("Ready", str(ready), "ContainersNotReady")]
    job.nodes = 2
    bundles.timed_out(job)
    verdict, checks = judged(job, tmp_path)
    assert (verdict.cause, verdict.ranks) == ("rank.missing", [1]), verdict.explanation
    waits = policy == "OrderedReady" and not ready
    message = "all pods before it are Ready (podManagementPolicy OrderedReady), and trainer-0 was never Ready"
    assert (message in checks["rank-pods"].explanation) == waits
    assert any("podManagementPolicy: Parallel" in step for step in verdict.next) == waits


@pytest.mark.parametrize(("owner", "named"), [(bundles.UID, False), ("another-statefulset", True)])
def test_only_pods_of_the_scaled_statefulset_are_scaled_away(tmp_path: Path, owner: str, named: bool) -> None:
    """Contract: a pod that another StatefulSet owns is named as deleted, whatever its index."""
    job = queued("StatefulSet")
    launched(job, "StatefulSet", 1, replicas=2)
    pods(job, 3, {}, "Running")
    launched(job, "StatefulSet", 5, replicas=1)
    gone = copy.deepcopy(job.objects[-2][1].object)
    gone["metadata"] |= {"ownerReferences": [{"uid": owner}], "name": "x-1", "uid": "x-1"}
    job.see("pod", 6, gone, "ADDED")
    job.see("pod", 7, gone, "DELETED")
    case = Facts(job.write(tmp_path / "bundle")).case
    last = case.bundle.objects("pod")["x-1"][-1]
    assert elastic.scaled_away(case, last) is not named


def test_scaling_another_statefulset_is_not_what_the_launch_allows(tmp_path: Path) -> None:
    job = queued("StatefulSet")
    assert job.manifest.launch is not None
    launch = job.manifest.launch.model_copy(update={"max_nodes": 4})
    job.manifest = job.manifest.model_copy(update={"launch": launch})
    launched(job, "StatefulSet", 1, replicas=2)
    case = Facts(job.write(tmp_path / "bundle")).case
    scaled = {
        name: Change(5, "edited", "statefulset", name, "", "", ("spec.replicas",)) for name in (NAME, "x")
    }
    assert [elastic.allows(case, scaled[name]) for name in (NAME, "x")] == [True, False]
