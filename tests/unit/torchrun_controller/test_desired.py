"""What becomes of a job, look by look. Most cases are defects of the original."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from torchrun_objects import CREATED, job, jobset, pod, queue

from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.models import JobStatus
from harness.torchrun_controller.decide.decisions import Create, Decision, Delete, DeleteParts, Snapshot
from harness.torchrun_controller.decide.job import desired

Object = dict[str, Any]
NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
EARLIER = "2026-11-23T11:00:00Z"


def look(one: Object, now: datetime = NOW, **seen: Any) -> Decision:
    return desired(one, Snapshot(**{"queue": queue(), **seen}), now)


def status_of(decision: Decision) -> Object:
    return decision.status.model_dump(by_alias=True, exclude_none=True)


def then(one: Object, decision: Decision) -> Object:
    """Return the job after the decision's status was written."""
    return {**one, "status": status_of(decision)}


def kinds(decision: Decision) -> list[str]:
    return [action.document["kind"] for action in decision.actions if isinstance(action, Create)]


def reason(decision: Decision, kind: str) -> tuple[str, str]:
    [found] = [item for item in decision.status.conditions if item.type == kind]
    return found.status, found.reason


def test_first_look_makes_the_jobset() -> None:
    """Contract: one look makes everything; nobody says Running before a pod runs."""
    decision = look(job())
    assert kinds(decision) == ["JobSet"]
    assert decision.status.phase == "Queued"
    assert decision.status.torchrun_command is not None
    assert decision.status.observed_generation == 1


def test_queue_that_is_not_there_yet() -> None:
    """Contract: the job waits with a condition and is not Failed; it starts when its queue comes."""
    one = job()
    waiting = look(one, queue=None)
    assert (waiting.status.phase, waiting.actions) == ("Pending", [])
    assert reason(waiting, "QueueReady") == ("False", "QueueNotFound")
    started = look(then(one, waiting))
    assert kinds(started) == ["JobSet"]
    assert reason(started, "QueueReady") == ("True", "QueueFound")


def test_readme_and_code_name_the_queue_otherwise() -> None:
    """Contract: `jobQueue` (README) and `queue` (code) both name it."""
    assert kinds(look(job(jobQueue=None, queue="cpu"))) == ["JobSet"]


def test_impossible_job_is_refused_at_once() -> None:
    """Contract: GPUs on nodes that have none end the job with the reason, and nothing is made."""
    decision = look(job(numGPUs=8))
    assert (decision.status.phase, decision.actions) == ("Failed", [])
    assert reason(decision, "Failed") == ("True", "NoGPUs")
    assert look(then(job(numGPUs=8), decision)).actions == []


def test_priority_class_that_is_not_there() -> None:
    """Contract: the API server would refuse each pod, in silence; the job says so and waits."""
    one, of = job(), queue(scheduling={"priorityClassName": "gpu-priority"})
    decision = look(one, priority_classes=frozenset(), queue=of)
    assert (decision.status.phase, decision.actions) == ("Pending", [])
    assert "gpu-priority" in str(decision.status.message)
    there = frozenset({"gpu-priority"})
    assert kinds(look(then(one, decision), priority_classes=there, queue=of)) == ["JobSet"]


def test_queued_is_a_phase() -> None:
    """Contract: what Kueue has not admitted is Queued, with Kueue's own words."""
    conditions = [{"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "no cpu left"}]
    decision = look(
        job(status=CREATED), jobset=jobset(suspend=True), workload={"status": {"conditions": conditions}}
    )
    assert (decision.status.phase, decision.status.message) == ("Queued", "no cpu left")


def test_preempted_is_shown_as_such_and_comes_back() -> None:
    """Contract: pods that Kueue took back are Preempted, then Running again, and never Suspended."""
    evicted = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "for a higher one"}
    one = job(status={**CREATED, "phase": "Running", "startTime": EARLIER})
    decision = look(one, jobset=jobset(suspend=True), workload={"status": {"conditions": [evicted]}})
    assert (decision.status.phase, decision.actions) == ("Preempted", [])
    assert reason(decision, "Suspended") == ("False", "NotSuspended")
    pods = [pod(0, "Running"), pod(1, "Running")]
    back = look(then(one, decision), jobset=jobset(), pods=pods, workload=None)
    assert back.status.phase == "Running"
    assert back.status.start_time == "2026-11-23T12:00:00Z"


@pytest.mark.parametrize(
    ("phases", "expected", "workers"),
    [
        (["Pending", "Pending"], "Pending", "0/2 ready"),
        (["Running", "Pending"], "Pending", "1/2 ready"),
        (["Running", "Running"], "Running", "2/2 ready"),
        (["Succeeded", "Running"], "Running", "2/2 ready"),
        (["Succeeded", "Failed"], "Pending", "1/2 ready"),
        (["Succeeded", "Succeeded"], "Running", "2/2 ready"),
    ],
)
def test_pods_decide_what_is_running_and_never_the_end(
    phases: list[str], expected: str, workers: str
) -> None:
    """Contract: pending pods are not Running; a rank that succeeded beside one that failed is no end."""
    pods = [pod(index, phase) for index, phase in enumerate(phases)]
    decision = look(job(status=CREATED), jobset=jobset(), pods=pods)
    assert (decision.status.phase, decision.status.workers_status) == (expected, workers)


def test_why_a_pod_does_not_run() -> None:
    """Contract: the message has the kubelet's or the scheduler's reason."""
    waiting = {"name": "trainer", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no image"}}}
    decision = look(
        job(status=CREATED), jobset=jobset(), pods=[pod(0, "Pending", containerStatuses=[waiting])]
    )
    assert "ImagePullBackOff: no image" in str(decision.status.message)


def test_pods_of_the_attempt_before_do_not_count() -> None:
    """Contract: after a restart the old failed pod is no failed worker."""
    pods = [pod(0, "Failed", attempt=0), pod(0, "Running", attempt=1), pod(1, "Running", attempt=1)]
    decision = look(job(status=CREATED), jobset=jobset(restarts=1), pods=pods)
    assert (decision.status.phase, decision.status.restarts) == ("Running", 1)
    assert decision.status.workers.failed == 0


def test_failed_rank_is_no_success() -> None:
    """Contract: the JobSet's failure is the job's, with the pod and its exit code."""
    ended = {"name": "trainer", "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}
    pods = [pod(0, "Succeeded"), pod(1, "Failed", containerStatuses=[ended])]
    decision = look(job(status=CREATED), jobset=jobset(Failed={"reason": "FailedJobs"}), pods=pods)
    assert decision.status.phase == "Failed"
    assert "demo-node-0-1-x0: Error, exit code 3" in str(decision.status.message)
    assert reason(decision, "Complete")[0] == "False"


def test_a_completed_jobset_is_a_succeeded_job() -> None:
    """Contract: the JobSet's completion is the job's, with the time."""
    decision = look(job(status=CREATED), jobset=jobset(Completed={}))
    assert (decision.status.phase, decision.status.completion_time) == ("Succeeded", "2026-11-23T12:00:00Z")


def finished(**fields: Any) -> Object:
    return job(**fields, status={**CREATED, "phase": "Succeeded", "completionTime": EARLIER})


def test_ttl_deletes_once_and_never_runs_again() -> None:
    """Contract: the TTL deletes what is left; the job stays and is never made again (the original's loop)."""
    one = finished(reliability={"ttlSecondsAfterFinished": 60})
    decision = look(one, jobset=jobset(Completed={}))
    assert decision.actions == [Delete(names.JOBSET_API, "JobSet", "demo", "js-uid")]
    gone = look(then(one, decision))
    assert gone.actions == []
    assert gone.status.phase == "Succeeded"
    assert reason(gone, "CleanedUp") == ("True", "TTLExpired")
    assert look(then(one, gone), NOW + timedelta(days=9)).actions == []


def test_ttl_that_has_not_passed() -> None:
    """Contract: logs stay until then, and the next look is at that moment. The default is an hour."""
    one = finished(reliability={"ttlSecondsAfterFinished": 7200})
    decision = look(one, jobset=jobset(Completed={}))
    assert decision.actions == []
    assert decision.requeue_at == datetime(2026, 11, 23, 13, 0, tzinfo=UTC)
    assert look(finished(), jobset=jobset(Completed={})).requeue_at is None  # an hour is just over


def test_ttl_deletes_only_claims_that_the_job_owns() -> None:
    """Contract: checkpoints and datasets outlive the job."""
    claims = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "uid": name, "ownerReferences": owners},
        }
        for name, owners in (("demo-workspace", [{"uid": "job-uid"}]), ("demo-checkpoints", []))
    ]
    decision = look(finished(), claims=claims)
    assert [action.name for action in decision.actions if isinstance(action, Delete)] == ["demo-workspace"]


def test_ttl_deletes_the_code_that_the_cluster_keeps() -> None:
    """Contract: by the job's UID, until the job is cleaned up; a job of which none is kept asks nothing."""
    kept = {names.WORKSPACE_ANNOTATION: "sha256:1", names.PARTS_ANNOTATION: "2"}
    ended = finished()
    with_code = {**ended, "metadata": {**ended["metadata"], "annotations": kept}}
    decision = look(with_code)
    assert decision.actions == [DeleteParts("job-uid")]
    assert look(then(with_code, decision)).actions == []
    assert look(ended).actions == []


def test_a_pod_holds_the_code_of_several_nodes() -> None:
    """Contract: where the queue asks for a workspace, the claim and the pod that holds it are made before
    the code comes, so that it can come while the job is queued.
    """
    asked = queue(storage={"workspace": {"enabled": True, "size": "1Gi"}})
    uploading = {names.WORKSPACE_ANNOTATION: "sha256:1", names.PARTS_ANNOTATION: ""}
    decision = look(job(annotations=uploading), queue=asked)
    assert kinds(decision) == ["PersistentVolumeClaim", "Service", "StatefulSet"]
    assert reason(decision, "WorkspaceReady") == ("False", "UploadingToPod")
    stateful = [action.document for action in decision.actions if isinstance(action, Create)][-1]
    [keeper] = stateful["spec"]["template"]["spec"]["containers"]
    # A ResourceQuota rejects a container that lacks one of these amounts.
    assert {kind: {*keeper["resources"][kind]} for kind in ("requests", "limits")} == {
        "requests": {"cpu", "memory"},
        "limits": {"cpu", "memory"},
    }
    there = job(annotations={**uploading, names.PARTS_ANNOTATION: "0"})
    made = look(then(there, decision), queue=asked)
    assert kinds(made) == ["PersistentVolumeClaim", "Service", "StatefulSet", "JobSet"]
    for one in (job(annotations={**uploading, names.PARTS_ANNOTATION: "1"}, numNodes=1), job()):
        assert "StatefulSet" not in kinds(look(one, queue=asked))


@pytest.mark.parametrize("parts", ["", "soon", "-1", "1.5"])
def test_pods_are_not_made_before_their_code(parts: str) -> None:
    """Contract: while the command line brings it, and when that was cut off, the job says so and how to go
    on; it starts when the code is there.
    """
    uploading = {names.WORKSPACE_ANNOTATION: "sha256:1", names.PARTS_ANNOTATION: parts}
    decision = look(job(annotations=uploading))
    assert (decision.status.phase, decision.actions) == ("Pending", [])
    assert reason(decision, "WorkspaceReady") == ("False", "Uploading")
    assert "kubectl torchrun sync demo" in str(decision.status.message)
    there = job(annotations={**uploading, names.PARTS_ANNOTATION: "1"})
    assert kinds(look({**there, "status": status_of(decision)})) == ["JobSet"]


def test_suspend_after_creation_and_resume() -> None:
    """Contract: suspend is heard at any time; a resumed job is not Suspended and starts again."""
    running = job(status={**CREATED, "phase": "Running", "startTime": EARLIER}, suspend=True)
    decision = look(running, jobset=jobset(), pods=[pod(0, "Running"), pod(1, "Running")])
    assert decision.status.phase == "Suspended"
    # With the version that was seen: a JobSet that completes meanwhile is not deleted.
    assert decision.actions == [Delete(names.JOBSET_API, "JobSet", "demo", "js-uid", "7")]
    stopped = look(then(running, decision))
    assert reason(stopped, "Suspended") == ("True", "Suspended")
    resumed = look(then(job(), stopped))
    assert kinds(resumed) == ["JobSet"]
    assert resumed.status.phase == "Queued"
    assert reason(resumed, "Suspended") == ("False", "Resumed")


def test_resume_waits_for_the_pods_before() -> None:
    """Contract: old and new pods of a job never run together: their names and ports are the same."""
    dying = jobset()
    dying["metadata"]["deletionTimestamp"] = EARLIER
    decision = look(job(status={"phase": "Suspended"}), jobset=dying)
    assert (decision.status.phase, decision.actions) == ("Pending", [])


def test_controller_dies_while_it_suspends() -> None:
    """Contract: resumed before its JobSet was deleted, the job goes on in it."""
    running = job(status={**CREATED, "phase": "Running"}, suspend=True)
    decision = look(running, jobset=jobset())
    resumed = look(then(job(), decision), jobset=jobset(), pods=[pod(0, "Running"), pod(1, "Running")])
    assert (resumed.status.phase, resumed.status.job_id) == ("Running", "js-uid")
    assert resumed.actions == []


def test_a_suspended_job_creates_nothing() -> None:
    """Contract: nothing is made until it is resumed."""
    decision = look(job(suspend=True))
    assert (decision.status.phase, decision.actions) == ("Suspended", [])


def test_end_comes_before_suspension() -> None:
    """Contract: a job that ended is not suspended, and not started again by a resume."""
    decision = look(job(status=CREATED, suspend=True), jobset=jobset(Completed={}))
    assert decision.status.phase == "Succeeded"


def test_the_active_deadline_stops_the_pods_without_retry() -> None:
    """Contract: a job that runs too long is TimedOut, its pods are stopped, and it is not repeated."""
    one = job(
        status={**CREATED, "phase": "Running", "startTime": EARLIER},
        reliability={"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 86400},
    )
    decision = look(one, jobset=jobset(), pods=[pod(0, "Running"), pod(1, "Running")])
    assert decision.status.phase == "TimedOut"
    stopped = look(then(one, decision), jobset=jobset())
    assert [type(action) for action in stopped.actions] == [Delete]


def test_active_deadline_wakes_the_controller() -> None:
    """Contract: no event is needed for the deadline to be kept."""
    one = job(status={**CREATED, "startTime": EARLIER}, reliability={"activeDeadlineSeconds": 7200})
    decision = look(one, jobset=jobset(), pods=[pod(0, "Running"), pod(1, "Running")])
    assert decision.requeue_at == datetime(2026, 11, 23, 13, 0, tzinfo=UTC)


def test_a_cancelled_job_stops_and_never_restarts() -> None:
    """Contract: a cancelled job stops, keeps its record, and does not start again."""
    one = job(status={**CREATED, "phase": "Running"}, cancel=True)
    decision = look(one, jobset=jobset())
    assert decision.status.phase == "Cancelled"
    stopped = look(then(one, decision), jobset=jobset())
    assert stopped.actions == [Delete(names.JOBSET_API, "JobSet", "demo", "js-uid", "7")]
    assert look(then(one, stopped)).actions == []


def test_deleted_jobset_is_not_made_again() -> None:
    """Contract: a JobSet that somebody deleted ends the job: made again it could train twice."""
    decision = look(job(status={**CREATED, "phase": "Running"}))
    assert (decision.status.phase, decision.actions) == ("Failed", [])
    assert reason(decision, "Failed") == ("True", "JobSetDeleted")


def test_jobset_of_somebody_else() -> None:
    """Contract: it is neither taken nor deleted."""
    other = jobset()
    other["metadata"]["ownerReferences"] = []
    decision = look(job(), jobset=other)
    assert (decision.status.phase, decision.actions) == ("Pending", [])
    assert "rename the job" in str(decision.status.message)


def test_an_etcd_that_nobody_installed_is_waited_for() -> None:
    """Contract: a job that names no etcd of its own waits for the manifests' and says how to get it."""
    by_etcd = job(distributed={"rdzvBackend": "etcd-v2"})
    waiting = look(by_etcd, no_etcd=True)
    assert (waiting.status.phase, waiting.actions) == ("Pending", [])
    assert reason(waiting, "EtcdReady") == ("False", "ServiceNotFound")
    assert "kubectl apply -k manifests/torchrun-etcd" in str(waiting.status.message)
    assert waiting.requeue_at == NOW + timedelta(seconds=10)
    started = look(then(by_etcd, waiting))
    assert kinds(started) == ["JobSet"]
    assert reason(started, "EtcdReady") == ("True", "ServiceFound")


def test_ranks_that_write_nothing_are_said() -> None:
    """Contract: Running with ready pods is no proof of training; the message says since when nobody wrote."""
    pods = [pod(0, "Running"), pod(1, "Running")]
    since, again = NOW - timedelta(minutes=6), NOW + timedelta(minutes=1)
    silent = look(job(status=CREATED), jobset=jobset(), pods=pods, silent=(since, again))
    assert silent.status.phase == "Running"
    assert "no rank has written to its log since 2026-11-23T11:54:00Z (2/2 ready)" in str(
        silent.status.message
    )
    assert silent.requeue_at == again
    writing = look(job(status=CREATED), jobset=jobset(), pods=pods, silent=(None, again))
    assert (writing.status.message, writing.requeue_at) == (None, again)


def test_an_elastic_job_waits_for_replacement_pods() -> None:
    """Contract: the JobSet of an elastic job does not end the attempt; its pods are made again one by one."""
    elastic = job(numNodes=None, minNodes=2, maxNodes=3, status={**CREATED, "numNodes": 3})
    lost = look(elastic, jobset=jobset(), pods=[pod(0, "Failed"), pod(1, "Running"), pod(2, "Pending")])
    assert lost.status.phase == "Pending"
    assert "created again, and the ranks rejoin the rendezvous" in str(lost.status.message)
    assert "JobSet ends" not in str(lost.status.message)


def test_pods_that_fetch_their_workspace_are_syncing() -> None:
    """Contract: pods that wait for their workspace are Syncing."""
    waiting = [{"name": "workspace", "state": {"running": {}}}]
    decision = look(
        job(status=CREATED), jobset=jobset(), pods=[pod(0, "Pending", initContainerStatuses=waiting)]
    )
    assert decision.status.phase == "Syncing"


def brought(index: int, phase: str, message: str, code: int = 0) -> Object:
    """Return a pod whose workspace was fetched, or was not."""
    ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "message": message}
    return pod(index, phase, initContainerStatuses=[{"name": "workspace", "state": {"terminated": ended}}])


def test_pods_with_different_code() -> None:
    """Contract: a branch that moved between two pods is no job: it fails, and says which pod has what."""
    pods = [brought(0, "Running", "aaa\n"), brought(1, "Pending", "bbb\n")]
    decision = look(job(status=CREATED), jobset=jobset(), pods=pods)
    assert (decision.status.phase, reason(decision, "Failed")) == ("Failed", ("True", "WorkspaceDiffers"))
    assert "demo-node-0-0-x0 has aaa, demo-node-0-1-x0 has bbb" in str(decision.status.message)
    same = [brought(0, "Running", "aaa\n"), brought(1, "Running", "aaa")]
    assert look(job(status=CREATED), jobset=jobset(), pods=same).status.phase == "Running"


def test_workspace_that_cannot_be_brought() -> None:
    """Contract: the message has the last words of what should have brought it."""
    pods = [brought(0, "Failed", "workspace: s3://b/c: expected objects, found none", 1)]
    message = str(look(job(status=CREATED), jobset=jobset(), pods=pods).status.message)
    assert "exit code 1: workspace: s3://b/c: expected objects" in message


def test_elastic_job_goes_on_without_a_node() -> None:
    """Contract: with min nodes left an elastic job is Running, also beside a failed pod."""
    one = job(numNodes=None, minNodes=2, maxNodes=3, status={**CREATED, "numNodes": 3})
    pods = [pod(0, "Running"), pod(1, "Running"), pod(2, "Failed")]
    assert look(one, jobset=jobset(), pods=pods).status.phase == "Running"
    assert look(one, jobset=jobset(), pods=pods[1:]).status.phase == "Pending"


def test_transition_time_changes_with_the_status_alone() -> None:
    """Contract: lastTransitionTime is since when it is so, not when it was last looked at."""
    one = job()
    first = look(one, queue=None)
    again = look(then(one, first), NOW + timedelta(hours=1), queue=None)
    assert again.status == first.status


def test_status_of_another_version_is_read() -> None:
    """Contract: fields that this version does not know do not stop it."""
    JobStatus.model_validate({"phase": "Running", "lastReconcileTime": EARLIER, "x": 1})


# A status that a newer version of the controller wrote before it was replaced with this one.


def newer(phase: str, **more: Any) -> Object:
    """Return the status of a running job, with values that this version does not support."""
    conditions = [
        {"type": "PodsReady", "status": "True", "reason": "Ready", "lastTransitionTime": EARLIER},
        {"type": "Paused", "status": "Sometimes", "reason": "New"},
    ]
    fields = {"jobName": "demo", "jobID": "jobset-uid", "numNodes": 2, "newField": {"a": 1}}
    return {"phase": phase, "conditions": conditions, "workers": {"running": "many"}, **fields, **more}


def test_status_of_newer_version_does_not_stop_reconcile() -> None:
    """Contract: the job goes on with the values that this version knows, and gets no second JobSet."""
    begun = then(job(), look(job()))
    one = {**begun, "status": newer("Warming", startTime=EARLIER)}
    found = look(one, jobset=jobset(), pods=[pod(0, "Running"), pod(1, "Running")])
    assert found.status.phase == "Running"
    assert kinds(found) == []
    assert {each.type for each in found.status.conditions} >= {"PodsReady"}
    assert "Paused" not in {each.type for each in found.status.conditions}


def test_job_that_newer_version_ended_is_not_started_again() -> None:
    """Contract: no JobSet, no deletion and no other status, whatever its spec says."""
    one = {**job(), "status": newer("Archived", completionTime=EARLIER)}
    for seen in ({}, {"jobset": jobset()}):
        found = look(one, **seen)
        assert found.actions == []
        assert found.status.completion_time == EARLIER
        assert found.status.phase is None


def test_old_job_with_unknown_phase_and_unreadable_spec_is_not_failed() -> None:
    one = {**job(), "status": newer("Warming")}
    one["spec"] = {**one["spec"], "numNodes": "many"}
    one["status"].pop("jobID")
    found = look(one)
    assert found.status.phase == "Pending"
    assert reason(found, "Reconciled") == ("False", "InvalidSpec")


@pytest.mark.parametrize("manager", [None, "kueue.x-k8s.io/multikueue"])
def test_jobset_of_other_cluster_is_not_reported_as_neglected(manager: str | None) -> None:
    """Contract: the JobSet controller is not accused, and the job's end comes from the JobSet's status."""
    elsewhere = jobset()
    if manager:
        elsewhere["spec"]["managedBy"] = manager
    begun = then(job(), look(then(job(), look(job())), jobset=elsewhere))
    found = look(begun, NOW + timedelta(minutes=10), jobset=elsewhere, warnings=[])
    assert found.status.phase == "Pending"
    assert found.actions == []
    message = str(found.status.message)
    assert ("kueue.x-k8s.io/multikueue manages its JobSet" in message) == (manager is not None)
    assert ("check that JobSet's controller" in message) == (manager is None), message
    ended = jobset(Completed={})
    ended["spec"] = elsewhere["spec"]
    assert look(begun, jobset=ended).status.phase == "Succeeded"
