"""Restarts by JobSet, Kueue, the kubelet or a user: the policy's limits decide which ones are allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bundles
import pytest
from bundles import at, cond
from restarted_ranks import restarts, twice

from harness.evidence.schema.bundle import Verdict

Judged = Callable[[bundles.Job], Verdict]


def first_pods(job: bundles.Job, job_uid: str = "job-1", when: float = 2) -> None:
    """Add earlier pods for both nodes of the healthy job, owned by the same Job or by another one."""
    states = job.objects
    job.objects = []
    for index in range(job.nodes):
        for moment, phase in ((when, "Pending"), (when + 0.2, "Running")):
            running = {"running": {"startedAt": at(when)}}
            job.pod(index, moment, phase, running if phase == "Running" else None)
        job.pod(index, when + 0.5, "Running", {"running": {"startedAt": at(when)}}, type_="DELETED")
    for _, seen in job.objects:
        metadata = seen.object["metadata"]
        metadata["uid"] = f"old-{metadata['uid']}"
        metadata["name"] = f"old-{metadata['name']}"
        metadata["creationTimestamp"] = at(when)
        metadata["ownerReferences"] = [{"kind": "Job", "uid": job_uid}]
        job.logs[metadata["name"]] = [f"{at(when, True)} first"]
    old = job.objects
    before = [pair for pair in states if pair[1].received_at < at(when, True)]
    job.objects = [*before, *old, *states[len(before) :]]
    for number, (_, seen) in enumerate(job.objects):
        seen.object["metadata"]["resourceVersion"] = str(101 + number)
        if seen.object["kind"] == "Pod" and not seen.object["metadata"]["name"].startswith("old-"):
            seen.object["metadata"]["ownerReferences"] = [{"kind": "Job", "uid": "job-2"}]


def test_job_of_jobset_is_deleted_and_made_again(judged: Judged) -> None:
    """Contract: the verdict is FAIL, because a user restarted the ranks, although no point is missing."""
    job = bundles.healthy()
    first_pods(job)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.restarted", [0, 1])
    assert "its Job was deleted, and a new Job was created in its place" in verdict.explanation


def test_who_edited_the_job_before_its_pods_were_replaced(judged: Judged) -> None:
    """Contract: if a user suspends and resumes the JobSet's Job, its controller deletes the pods without an
    Event. The verdict names the edit of the Job.
    """
    job = bundles.healthy()
    first_pods(job, job_uid="job-2")
    position = next(n for n, (kind, _) in enumerate(job.objects) if kind == "pod") + 4
    edits = bundles.Job(version=0)
    for moment, suspend, manager in ((1.9, False, ""), (2.3, True, "kubectl-patch")):
        written = [{"manager": manager, "operation": "Update", "time": at(moment)}] if manager else []
        metadata = {"name": "x-workers-0", "uid": "job-2", "managedFields": written}
        edits.see("job", moment, {"kind": "Job", "metadata": metadata, "spec": {"suspend": suspend}})
    job.objects[position:position] = edits.objects
    for number, (_, seen) in enumerate(job.objects):
        seen.object["metadata"]["resourceVersion"] = str(101 + number)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.restarted", [0, 1])
    change = "2026-11-21T05:00:02Z Job x-workers-0 was edited by kubectl-patch (spec.suspend)"
    assert verdict.explanation.endswith(f"Changes outside the job: {change}")


def suspended(job: bundles.Job, manager: str) -> None:
    """Suspend the JobSet while the first pods run, and resume it."""
    position = next(n for n, (kind, _) in enumerate(job.objects) if kind == "pod") + 4
    entry = {"manager": manager, "operation": "Update", "time": at(2.4)}
    made = bundles.Job(version=0)
    made.jobset(1.9)
    made.jobset(2.4, suspend=True)
    made.objects[-1][1].object["metadata"]["managedFields"] = [entry]
    job.objects[position:position] = made.objects
    for number, (_, seen) in enumerate(job.objects):
        seen.object["metadata"]["resourceVersion"] = str(101 + number)


def test_a_jobset_that_somebody_suspends_and_resumes(judged: Judged) -> None:
    """Contract: the verdict names the user who suspended the JobSet, and the time."""
    job = bundles.healthy()
    first_pods(job, job_uid="job-2")
    suspended(job, "kubectl-patch")
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.restarted", [0, 1])
    assert "kubectl-patch suspended JobSet multinode-1a2b at 2026-11-21T05:00:02Z" in verdict.explanation


def test_kueue_may_suspend_and_admit_again(judged: Judged) -> None:
    """Contract: a job that lost its quota, got it back and finished is a PASS that mentions it."""
    job = bundles.healthy()
    first_pods(job, job_uid="job-2")
    suspended(job, "kueue")
    edits = bundles.Job(version=0)
    edits.workload(2.3, [cond("Admitted", "True", "Admitted"), cond("Evicted", "True", "Preempted", "for x")])
    position = next(n for n, (kind, _) in enumerate(job.objects) if kind == "pod") + 4
    job.objects[position:position] = edits.objects
    for number, (_, seen) in enumerate(job.objects):
        seen.object["metadata"]["resourceVersion"] = str(101 + number)
    verdict = judged(job)
    assert verdict.verdict == "PASS", verdict.explanation
    assert "Kueue suspended JobSet multinode-1a2b" in restarts(verdict).explanation


def test_a_workload_that_somebody_deletes(judged: Judged) -> None:
    """Contract: the deletion is named. Kueue suspends the job and creates another Workload."""
    job = bundles.healthy()
    first_pods(job, job_uid="job-2")
    suspended(job, "kueue")
    edits = bundles.Job(version=0)
    edits.workload(2.1, [cond("Admitted", "True", "Admitted")])
    edits.objects[-1][1].object["metadata"]["deletionTimestamp"] = "2026-11-21T05:00:02Z"
    position = next(n for n, (kind, _) in enumerate(job.objects) if kind == "pod") + 4
    job.objects[position:position] = edits.objects
    for number, (_, seen) in enumerate(job.objects):
        seen.object["metadata"]["resourceVersion"] = str(101 + number)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "rank.restarted")
    assert "was deleted at 2026-11-21T05:00:02Z, so that Kueue suspended JobSet" in verdict.explanation


@pytest.mark.parametrize(("limit", "expected"), [(1, "PASS"), (0, "FAIL")])
def test_a_jobset_restarts_as_often_as_it_may(judged: Judged, limit: int, expected: str) -> None:
    """Contract: the JobSet's maxRestarts determines the number of allowed restarts."""
    job = bundles.healthy()
    first_pods(job)
    for kind, seen in job.objects:
        if kind == "jobset":
            seen.object["spec"]["failurePolicy"] = {"maxRestarts": limit}
            seen.object["status"]["restarts"] = 1
        if kind == "pod" and not seen.object["metadata"]["name"].startswith("old-"):
            seen.object["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] = "1"
    verdict = judged(job)
    assert verdict.verdict == expected, verdict.explanation
    assert f"(restart 1 of at most {limit})" in restarts(verdict).explanation


@pytest.mark.parametrize(("counted", "expected"), [(1, "PASS"), (2, "FAIL"), (None, "FAIL")])
def test_restart_after_disruption_does_not_count(judged: Judged, counted: int | None, expected: str) -> None:
    """Contract: RestartJobSetAndIgnoreMaxRestarts allows more restarts than maxRestarts."""
    job = bundles.healthy()
    first_pods(job)
    for kind, seen in job.objects:
        if kind == "jobset":
            seen.object["spec"]["failurePolicy"] = {"maxRestarts": 1}
            seen.object["status"] |= {"restarts": 2}
            if counted is not None:
                seen.object["status"] |= {"restartsCountTowardsMax": counted}
        if kind == "pod" and not seen.object["metadata"]["name"].startswith("old-"):
            seen.object["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] = "2"
    verdict = judged(job)
    assert verdict.verdict == expected, verdict.explanation
    if counted == 1:
        assert "(restart 2, of which 1 of at most 1 count)" in restarts(verdict).explanation


@pytest.mark.parametrize(
    ("policy", "expected"), [({"maxRestarts": 1}, "PASS"), ({"maxRestarts": 0}, "FAIL"), ({}, "FAIL")]
)
def test_jobset_that_restarts_one_job(judged: Judged, policy: dict[str, Any], expected: str) -> None:
    """kubernetes-sigs/jobset #1152: the action RestartJob deletes one Job, and creates it again."""
    job = bundles.healthy()
    first_pods(job)
    for kind, seen in job.objects:
        if kind == "jobset":
            seen.object["spec"]["failurePolicy"] = policy
        if kind == "pod" and not seen.object["metadata"]["name"].startswith("old-"):
            seen.object["metadata"]["labels"]["jobset.sigs.k8s.io/job-restart-attempt"] = "1"
    verdict = judged(job)
    assert verdict.verdict == expected, verdict.explanation
    assert "JobSet restarted its Job (restart 1 of the Job)" in restarts(verdict).explanation


RULE = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
ALL = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [7]}}


@pytest.mark.parametrize(
    ("own", "agent", "code", "expected"),
    [
        ({"restartPolicy": "Never", "restartPolicyRules": [RULE]}, {}, 42, "PASS"),
        ({"restartPolicy": "Never", "restartPolicyRules": [RULE]}, {}, 1, "FAIL"),
        ({"restartPolicy": "OnFailure"}, {}, 1, "PASS"),
        ({"restartPolicy": "OnFailure"}, {}, 0, "FAIL"),
        ({}, {"restartPolicyRules": [ALL]}, 137, "PASS"),
        ({}, {"restartPolicyRules": [RULE]}, 42, "FAIL"),
        ({}, {}, 42, "FAIL"),
    ],
)
def test_container_with_restart_rules_of_its_own(
    judged: Judged, own: dict[str, Any], agent: dict[str, Any], code: int, expected: str
) -> None:
    """kubernetes-sigs/jobset #1099: containers restart in place, although the pod has restartPolicy Never."""
    job = bundles.healthy()
    twice(job)
    for kind, seen in job.objects:
        if kind != "pod":
            continue
        seen.object["spec"] |= {"restartPolicy": "Never", "initContainers": [{"name": "agent", **agent}]}
        for status in seen.object["status"].get("containerStatuses", []):
            rank_container = {"name": status["name"], **own}
            seen.object["spec"]["containers"] = [rank_container]
            if "terminated" in status["state"]:
                status |= {"restartCount": 1, "lastState": {"terminated": {"exitCode": code}}}
    verdict = judged(job)
    found = restarts(verdict)
    assert found.result == expected, found.explanation


def test_a_kubelet_that_starts_a_container_again(judged: Judged) -> None:
    """Contract: restartPolicy Always runs a rank twice, which a training job does not expect."""
    job = bundles.healthy()
    for kind, seen in job.objects:
        for status in seen.object["status"].get("containerStatuses", []) if kind == "pod" else []:
            if "terminated" in status["state"]:
                status |= {"restartCount": 1, "lastState": {"terminated": {"exitCode": 0}}}
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "rank.restarted")
    assert "(restartPolicy Always; it had ended with exit code 0)" in verdict.explanation
