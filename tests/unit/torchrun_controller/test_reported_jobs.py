"""Job states from public bug reports of other training controllers. Each test names its report.

The inputs are the reports' situations, reduced to a job, its JobSet, its Workload and its pods.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from torchrun_objects import CREATED, job, jobset, pod, queue
from torchrun_story import RUNNING, Story, workload

from harness.torchrun_controller.decide.decisions import Create
from harness.torchrun_controller.runtime.kinds import WORKLOADS

Object = dict[str, Any]


@pytest.mark.parametrize(
    ("reason", "phase"),
    [("Preempted", "Preempted"), ("PodsReadyTimeout", "Queued"), ("ClusterQueueStopped", "Queued")],
)
def test_an_evicted_job_is_not_ready(reason: str, phase: str) -> None:
    """kubernetes-sigs/kueue#2291: conditions of an evicted workload still said that its pods were ready.

    Contract: when Kueue takes the pods back, for whatever reason, no pod is ready, and the job has not
    started again.
    """
    story = Story().created()
    story.look(jobset=jobset(), pods=RUNNING)
    assert story.condition("PodsReady") == ("True", "PodsReady")
    evicted = workload(Evicted=("True", reason, "why"), QuotaReserved=("False", "Pending", "why"))
    story.look(jobset=jobset(suspend=True), workload=evicted)
    assert (story.status["phase"], story.status["message"]) == (phase, "why")
    assert story.condition("PodsReady")[0] == "False"
    assert story.status["workersStatus"] == "0/2 ready"
    assert story.reasons.count("Started") == 1
    story.look(jobset=jobset(), pods=RUNNING)
    assert story.reasons.count("Started") == 2


def test_a_deactivated_workload_says_how_to_go_on() -> None:
    """kubernetes-sigs/kueue#14811: after too many evictions a workload is never admitted again.

    Contract: a job that can wait forever says so, and what to do.
    """
    story = Story()
    evicted = ("True", "DeactivatedDueToRequeuingLimitExceeded", "exceeded the number of re-queuing retries")
    deactivated = {**workload(Evicted=evicted), "spec": {"active": False}}
    story.look(jobset=jobset(suspend=True), workload=deactivated)
    assert story.status["phase"] == "Queued"
    assert "exceeded the number of re-queuing retries" in story.status["message"]
    assert "Kueue will not readmit the job" in story.status["message"]
    assert "suspend and resume it" in story.status["message"]
    assert story.reasons == ["Queued"]
    reserved = ("False", "Pending", "insufficient quota")
    reactivated = {**workload(Evicted=evicted, QuotaReserved=reserved), "spec": {"active": True}}
    story.look(jobset=jobset(suspend=True), workload=reactivated)
    assert story.status["message"] == "insufficient quota"


def test_preempted_and_deactivated_job_says_how_to_continue() -> None:
    """kubernetes-sigs/kueue#2172: a Workload that is deactivated after its preemption stays Preempted.

    Contract: a job that Kueue never admits again says so, whatever the reason of its last eviction.
    """
    story = Story().created()
    evicted = ("True", "Preempted", "Preempted to accommodate a workload")
    deactivated = {**workload(Evicted=evicted), "spec": {"active": False}}
    story.look(jobset=jobset(suspend=True), workload=deactivated)
    assert story.condition("Admitted") == ("False", "Deactivated")
    assert "Preempted to accommodate a workload" in story.status["message"]
    assert "suspend and resume it" in story.status["message"]


def test_preempted_job_says_why_it_is_not_admitted_again() -> None:
    """kubernetes-sigs/kueue#6819: a Workload's conditions showed old preemptions, and not its present state.

    Contract: after the preemption, Kueue's present reason is in the message, and no Event repeats.
    """
    story = Story().created()
    evicted = ("True", "Preempted", "Preempted to accommodate a workload")
    for reserved in ("Preempted to accommodate a workload", "LocalQueue cpu is stopped"):
        found = workload(Evicted=evicted, QuotaReserved=("False", "Pending", reserved))
        story.look(jobset=jobset(suspend=True), workload=found)
        assert story.status["phase"] == "Preempted"
    message = "Preempted to accommodate a workload; the job is queued again: LocalQueue cpu is stopped"
    assert story.status["message"] == message
    assert story.reasons.count("Preempted") == 1


def test_eviction_of_late_pods_keeps_their_reason() -> None:
    """Contract: Kueue reports only that the pods were late, and deletes them. The job still says why they did
    not start.
    """
    story = Story().created()
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image x"}}
    late = pod(1, "Pending", containerStatuses=[{"name": "trainer", "state": state}])
    timeout = "Exceeded the PodsReady timeout team/jobset-demo"
    evicted = workload(
        Evicted=("True", "PodsReadyTimeout", timeout), QuotaReserved=("False", "Pending", timeout)
    )
    story.look(jobset=jobset(), pods=[pod(0, "Running"), late])
    for _ in range(3):
        story.look(jobset=jobset(suspend=True), workload=evicted)
        assert story.status["message"].startswith(f"{timeout}; before that, 1 of 2 pods running: ")
        assert "ImagePullBackOff: Back-off pulling image x" in story.status["message"]
    assert story.reasons.count("PodsNotStarting") == 1
    story.look(jobset=jobset(), pods=RUNNING)
    preempted = workload(Evicted=("True", "Preempted", "why"), QuotaReserved=("False", "Pending", "why"))
    story.look(jobset=jobset(suspend=True), workload=preempted)
    assert story.status["message"] == "why"


def test_an_eviction_by_an_admission_check_names_the_check() -> None:
    """kubernetes-sigs/kueue#14309: a check's state after an eviction decides whether the job is queued again.

    Contract: "At least one admission check is false" is not the whole message.
    """
    message = "At least one admission check is false"
    found = workload(Evicted=("True", "AdmissionCheck", message), QuotaReserved=("False", "Pending", message))
    found["status"]["admissionChecks"] = [
        {"name": "provisioning", "state": "Pending", "message": "Reset to Pending. Previously: Retry"}
    ]
    story = Story().created()
    story.look(jobset=jobset(suspend=True), workload=found)
    check = "admission check provisioning is Pending: Reset to Pending. Previously: Retry"
    assert story.status["message"] == f"{message}; {check}"


def test_finished_workload_of_suspended_jobset_is_no_wait() -> None:
    """Contract: Kueue never admits a Workload that is finished, for example because it is out of sync."""
    finished = workload(Finished=("True", "OutOfSync", "The workload is out of sync with its parent job"))
    finished["metadata"] |= {"namespace": "team", "uid": "w", "resourceVersion": "3"}
    story = Story().created()
    story.look(jobset=jobset(suspend=True), workload=WORKLOADS.trim(finished))
    assert "out of sync with its parent job" in story.status["message"]
    assert "suspend and resume it" in story.status["message"]


def test_a_newer_crd_does_not_end_a_job() -> None:
    """DataDog/datadog-operator#2484: the CRDs and the controller are not upgraded at the same time.

    Contract: the API server adds a new field's default to jobs that exist. A job that runs goes on, and
    reports once that the controller is older. Its end, its cancellation and its suspension work.
    """
    story = Story().created()
    story.look(jobset=jobset(), pods=RUNNING)
    story.edit(newField="x", reliability={"newLimit": 3})
    for _ in range(3):
        decision = story.look(jobset=jobset(), pods=RUNNING)
        assert (decision.status.phase, decision.actions) == ("Running", [])
    assert story.condition("Reconciled") == ("False", "UnknownField")
    assert story.reasons.count("UnknownField") == 1
    changed = [
        each["lastTransitionTime"] for each in story.status["conditions"] if each["type"] == "Reconciled"
    ]
    assert changed == ["2026-11-23T12:00:30Z"]
    story.job["spec"] = job()["spec"]
    story.look(jobset=jobset(), pods=RUNNING)
    assert story.condition("Reconciled") == ("True", "Reconciled")
    story.edit(newField="x")
    story.look(jobset=jobset(Completed={}), pods=[])
    assert story.status["phase"] == "Succeeded"


def test_a_value_of_a_newer_crd_keeps_the_jobset() -> None:
    """operator-framework/operator-controller#746: a newer CRD may permit more values of a field.

    Contract: a job whose JobSet exists is not ended because of a value that only the newer version knows.
    """
    story = Story().created()
    story.look(jobset=jobset(), pods=RUNNING)
    story.edit(reliability={"restartPolicy": "Always"})
    decision = story.look(jobset=jobset(), pods=RUNNING)
    assert (decision.status.phase, decision.actions) == ("Running", [])
    story.edit(command=7)
    decision = story.look(jobset=jobset(), pods=RUNNING)
    assert (decision.status.phase, decision.actions) == ("Running", [])
    assert "command" in (decision.status.message or "")
    story.edit(cancel=True)
    assert story.look(jobset=jobset(), pods=RUNNING).status.phase == "Cancelled"


def test_value_of_newer_crd_keeps_suspended_job() -> None:
    """operator-framework/operator-controller#746: a newer CRD may permit more values of a field.

    Contract: a suspended job has checkpoints and no JobSet. It waits for the controller that can read it.
    """
    story = Story(suspend=True)
    story.look()
    story.edit(suspend=False, reliability={"restartPolicy": "Always"})
    for _ in range(2):
        decision = story.look()
        assert (decision.status.phase, decision.actions) == ("Suspended", [])
        assert "restartPolicy" in story.status["message"]
    story.edit(reliability={})
    assert any(isinstance(action, Create) for action in story.look().actions)
    assert Story(reliability={"restartPolicy": "Always"}).look().status.phase == "Failed"


def test_new_job_with_newer_field_waits_for_controller() -> None:
    """longhorn/longhorn-manager#3651: an upgrade failed when CRDs and controller were of two versions.

    Contract: a job is not started without a field that was set in it, and it is not Failed for good.
    """
    story = Story(reliability={"newLimit": 3})
    decision = story.look()
    assert (decision.status.phase, decision.actions) == ("Pending", [])
    assert "found reliability.newLimit" in story.status["message"]
    assert "update the controller" in story.status["message"]
    story.edit(reliability={})
    assert any(isinstance(action, Create) for action in story.look().actions)


@pytest.mark.parametrize("ended", ["cancelled", "deadline"])
def test_no_worker_of_an_ended_job_is_ready(ended: str) -> None:
    """ray-project/kuberay#2314, volcano-sh/volcano#1718: a job that had failed still counted running pods.

    Contract: when the pods of a job that was stopped are gone, its status counts none as running.
    """
    limits = {"activeDeadlineSeconds": 5} if ended == "deadline" else {}
    story = Story(reliability=limits).created()
    story.look(jobset=jobset(), pods=RUNNING)
    if ended == "cancelled":
        story.edit(cancel=True)
    story.look(jobset=jobset(), pods=RUNNING)
    assert story.status["phase"] in ("Cancelled", "TimedOut")
    dying = jobset()
    dying["metadata"]["deletionTimestamp"] = "2026-11-23T12:00:20Z"
    story.look(jobset=dying, pods=[])
    story.look()
    assert story.status["workers"] == {"pending": 0, "ready": 0, "running": 0, "failed": 0, "succeeded": 0}
    assert story.status["workersStatus"] == "0/2 ready"


def test_workers_that_succeeded_stay_counted() -> None:
    """Contract: a job that Succeeded keeps its counts when its pods are deleted with their node."""
    story = Story().created()
    story.look(jobset=jobset(), pods=RUNNING)
    story.look(jobset=jobset(Completed={}), pods=[pod(0, "Succeeded")])
    story.look(jobset=jobset(Completed={}), pods=[])
    assert story.status["workers"]["succeeded"] == 2
    assert story.status["workersStatus"] == "2/2 ready"


def test_resuming_is_no_restart() -> None:
    """volcano-sh/volcano#3067: a job that was suspended and resumed three times was Failed.

    Contract: suspensions do not count against maxRestarts, and a resumed job runs.
    """
    story = Story(reliability={"maxRestarts": 1})
    for number in range(4):
        decision = story.look()
        assert any(isinstance(action, Create) for action in decision.actions)
        story.look(jobset=jobset(uid=f"js-{number}"), pods=RUNNING)
        assert (story.status["phase"], story.status["restarts"]) == ("Running", 0)
        story.edit(suspend=True)
        story.look(jobset=jobset(uid=f"js-{number}"), pods=RUNNING)
        story.look()
        assert story.status["phase"] == "Suspended"
        story.edit(suspend=False)
    assert story.reasons.count("Restarted") == 0


def test_a_resumed_job_says_that_it_runs() -> None:
    """kubeflow/sdk#803, kubeflow/trainer#2159: a job that was resumed and ran was Created or Suspended.

    Contract: after a suspension in the queue and a resume, the phase is that of the pods.
    """
    story = Story(suspend=True)
    story.look()
    story.edit(suspend=False)
    story.look()
    story.look(jobset=jobset(), pods=RUNNING)
    assert story.status["phase"] == "Running"
    assert story.condition("Suspended") == ("False", "Resumed")


@pytest.mark.parametrize("ended", ["Completed", "Failed"])
def test_an_ended_job_whose_jobset_is_deleted(ended: str) -> None:
    """kubeflow/trainer#2981 and #3737: the JobSet of an ended job was deleted, and created again.

    Contract: nothing is created for a job that has ended, and its phase stays.
    """
    story = Story().created()
    story.look(jobset=jobset(), pods=RUNNING)
    story.look(jobset=jobset(**{ended: {"reason": "FailedJobs"}}), pods=[])
    phase = story.status["phase"]
    for _ in range(3):
        assert story.look().actions == []
        assert story.status["phase"] == phase


def test_job_of_same_name_waits_for_one_before() -> None:
    """kubeflow/trainer#322: a job that was deleted and created again under its name was stuck.

    Contract: the JobSet of the deleted job is terminating by itself. The message does not ask to delete it.
    """
    story, old = Story(), jobset()
    old["metadata"]["ownerReferences"] = [
        {"apiVersion": "torchrun.ai/v1alpha1", "kind": "TorchrunJob", "name": "demo", "uid": "an-earlier-job"}
    ]
    for dying in (False, True):
        if dying:
            old["metadata"]["deletionTimestamp"] = "2026-11-23T12:00:00Z"
        decision = story.look(jobset=old, pods=[])
        assert (decision.status.phase, decision.actions) == ("Pending", [])
        assert "the pods of an earlier job of this name are terminating" in story.status["message"]
    assert any(isinstance(action, Create) for action in story.look().actions)


@pytest.mark.parametrize("dying", [False, True])
@pytest.mark.parametrize("kind", ["workspace", "checkpoints"])
def test_job_does_not_start_with_terminating_claim(kind: str, dying: bool) -> None:
    """FoundationDB/fdb-kubernetes-operator#764, k8up-io/k8up#86: pods waited for a claim that was gone.

    Contract: a claim that the garbage collector or a user deletes is waited for, and created anew. The claim
    of an earlier job is kept for the next one only if no job owns it.
    """
    story = Story(numNodes=1, workspaceStorage={"source": "git", "url": "https://git.example/x"})
    of = queue(storage={"checkpoints": {"enabled": True, "size": "1Gi"}})
    metadata: Object = {"name": f"demo-{kind}", "uid": "c", "labels": {"torchrun-job-name": "demo"}}
    if kind == "workspace":
        metadata["ownerReferences"] = [{"kind": "TorchrunJob", "name": "demo", "uid": "an-earlier-job"}]
    if dying:
        metadata["deletionTimestamp"] = "2026-11-23T11:00:00Z"
    decision = story.look(queue=of, claims=[{"metadata": metadata, "status": {"phase": "Bound"}}])
    created = [
        action.document["metadata"]["name"] for action in decision.actions if isinstance(action, Create)
    ]
    if kind == "checkpoints" and not dying:
        assert created == ["demo-workspace", "demo"]
        return
    assert (decision.status.phase, decision.actions) == ("Pending", [])
    assert f"claim demo-{kind}" in story.status["message"]
    assert "is being deleted; the job starts once it is gone" in story.status["message"]
    decision = story.look(queue=of, claims=[])
    created = [
        action.document["metadata"]["name"] for action in decision.actions if isinstance(action, Create)
    ]
    assert created == ["demo-workspace", "demo-checkpoints", "demo"]


def test_end_that_was_seen_late_has_its_own_time() -> None:
    """volcano-sh/volcano#3715: after a restart of the controller, jobs had run longer than they had.

    Contract: a job that ended while no controller ran ended when its JobSet did.
    """
    story = Story().created()
    story.look(jobset=jobset(), pods=RUNNING)
    story.now += timedelta(hours=2)
    ended = {"reason": "AllJobsCompleted", "lastTransitionTime": "2026-11-23T12:05:00Z"}
    story.look(jobset=jobset(Completed=ended), pods=[])
    assert story.status["completionTime"] == "2026-11-23T12:05:00Z"


def test_a_pod_that_waits_is_not_running() -> None:
    """volcano-sh/volcano#2684 and #436: a job was Running while its pod was pending or in a crash loop.

    Contract: a job is Running only while enough of its pods run.
    """
    story = Story().created()
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}
    looping = pod(1, "Pending", containerStatuses=[{"name": "trainer", "state": state}])
    story.look(jobset=jobset(), pods=[pod(0, "Running"), looping])
    assert story.status["phase"] == "Pending"
    assert "CrashLoopBackOff" in story.status["message"]


def test_failed_rank_with_restarts_left_ends_attempt_only() -> None:
    """kubeflow/trainer#2044: a job whose rank failed for good stayed in the phase Restarting.

    Contract: between the failed pod and the JobSet's decision the job is Pending; the JobSet's failure is
    the job's, at once.
    """
    story = Story(reliability={"maxRestarts": 1}).created()
    ended = {"name": "trainer", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    failed = pod(1, "Failed", containerStatuses=[ended])
    story.look(jobset=jobset(), pods=[pod(0, "Running"), failed])
    assert story.status["phase"] == "Pending"
    story.look(jobset=jobset(Failed={"reason": "ReachedMaxRestarts"}), pods=[pod(0, "Running"), failed])
    assert story.status["phase"] == "Failed"
    assert "exit code 1" in story.status["message"]
    assert CREATED["jobID"] == story.status["jobID"]
