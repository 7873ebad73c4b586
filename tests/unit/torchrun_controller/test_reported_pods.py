"""Pods from public bug reports: deleted, terminating without end, evicted, gated. Each names its report."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from torchrun_api import Api, Watching
from torchrun_objects import CREATED, job, jobset, pod, queue
from torchrun_story import NOW, RUNNING, Story

from harness.torchrun_controller.api import names
from harness.torchrun_controller.decide.decisions import Snapshot
from harness.torchrun_controller.decide.job import desired
from harness.torchrun_controller.runtime.kinds import PODS

Object = dict[str, Any]
PEER_LOST = "RuntimeError: Connection closed by peer"


def terminating(index: int, until: str, phase: str = "Running", node: str | None = "n2") -> Object:
    """Return a pod that is being deleted, with the end of its grace period."""
    found = pod(index, phase, ready=False)
    found["metadata"]["deletionTimestamp"] = until
    return {**found, "spec": {"nodeName": node} if node else {}}


def failed(index: int, message: str = PEER_LOST, exit_code: int = 1) -> Object:
    """Return a pod whose trainer failed."""
    end = {"exitCode": exit_code, "reason": "Error", "finishedAt": "2026-11-23T12:00:20Z", "message": message}
    trainer = {"name": "trainer", "state": {"terminated": end}}
    return pod(index, "Failed", containerStatuses=[trainer])


def started(**spec: Any) -> Story:
    """Return a job whose pods run."""
    story = Story(**spec).created()
    story.look(jobset=jobset(), pods=RUNNING)
    return story


def test_restart_waiting_for_lost_node_names_both() -> None:
    """kubernetes-sigs/kueue#9649, kubernetes/kubernetes#72226: a pod on a lost node was terminating for ever.

    Contract: the JobSet creates no pods until the earlier ones are gone. The message names the pod and its
    node, and accuses no controller.
    """
    story = started()
    story.now += timedelta(minutes=5)
    story.look(jobset=jobset(restarts=1), pods=[terminating(1, "2026-11-23T12:01:00Z")], warnings=[])
    message = story.status["message"]
    assert (
        "demo-node-0-1-x0 on node n2 is terminating, but should have ended by 2026-11-23T12:01:00Z" in message
    )
    assert "check node n2" in message
    assert "PodsNotStarting" in story.reasons


def test_restart_waiting_for_grace_period_says_how_long() -> None:
    """kubernetes-sigs/jobset#392: pods that write a checkpoint at SIGTERM use their whole grace period.

    Contract: while pods may still terminate, no controller is said to be idle, and nothing is a warning.
    """
    story = started()
    for _ in range(3):
        story.now += timedelta(minutes=2)
        story.look(jobset=jobset(restarts=1), pods=[terminating(1, "2026-11-23T12:10:00Z")], warnings=[])
        assert "must end by 2026-11-23T12:10:00Z" in story.status["message"]
        assert "check that" not in story.status["message"]
    assert "PodsNotStarting" not in story.reasons


@pytest.mark.parametrize("waits", ["suspended", "resumed", "next"])
def test_job_waiting_for_old_pods_names_hanging_one(waits: str) -> None:
    """kubernetes-sigs/kueue#10847: the deletion of a JobSet's Job was blocked by one pod of a bad kubelet.

    Contract: a suspended job, a resumed job and the next job of the same name name the pod and the node.
    """
    story, dying = started(), jobset()
    dying["metadata"]["deletionTimestamp"] = "2026-11-23T12:00:30Z"
    if waits == "next":
        story = Story()
        dying["metadata"]["ownerReferences"] = [{"kind": "TorchrunJob", "name": "demo", "uid": "earlier"}]
    else:
        story.edit(suspend=True)
        story.look(jobset=jobset(), pods=RUNNING)
        story.edit(suspend=waits == "suspended")
    pods = [terminating(0, "2026-11-23T12:00:30Z"), terminating(1, "2026-11-23T12:00:30Z", "Failed")]
    soon = story.look(jobset=dying, pods=pods)
    assert "n2" not in story.status["message"]
    assert soon.requeue_at is not None
    story.now += timedelta(minutes=1)
    story.look(jobset=dying, pods=pods)
    assert "demo-node-0-0-x0 on node n2 (and 1 more) is terminating" in story.status["message"]


def test_a_terminating_pod_without_a_node_has_a_finalizer() -> None:
    """Contract: no kubelet and no node is accused of a pod that was never scheduled."""
    story = started()
    story.now += timedelta(minutes=5)
    story.look(
        jobset=jobset(restarts=1), pods=[terminating(1, "2026-11-23T12:01:00Z", node=None)], warnings=[]
    )
    assert "check the pod's finalizers" in story.status["message"]
    assert "--force" not in story.status["message"]


def test_deleted_pod_is_cause_and_not_peer() -> None:
    """kubeflow/trainer#2124: a job failed because one of its running pods had got a deletion timestamp.

    Contract: the deleted pod is named until the attempt ends, and in the job's end. The other ranks' errors
    follow from it.
    """
    story = started(reliability={"maxRestarts": 0})
    story.look(jobset=jobset(), pods=[terminating(0, "2026-11-23T12:00:50Z", node="n1"), RUNNING[1]])
    cause = "demo-node-0-0-x0 on node n1 was deleted by a user or by another controller"
    assert story.status["message"].startswith(f"{cause}; the JobSet ends this attempt")
    story.look(jobset=jobset(), pods=[failed(1)])
    assert story.status["message"].startswith(cause)
    story.look(jobset=jobset(Failed={"reason": "FailedJobs"}), pods=[failed(1)])
    assert story.status["message"] == f"{cause}; then demo-node-0-1-x0: Error, exit code 1: {PEER_LOST}"
    assert story.condition("Failed") == ("True", "PodDeleted")
    assert story.reasons.count("PodDeleted") == 1


@pytest.mark.parametrize("first", [failed(1), pod(1, "Succeeded")])
def test_pods_that_job_deletes_after_end_are_not_cause(first: Object) -> None:
    """Contract: after a failure, or once enough ranks have succeeded, the Job deletes the other pods."""
    story = started()
    story.look(jobset=jobset(), pods=[terminating(0, "2026-11-23T12:00:50Z"), first])
    assert "was deleted" not in (story.status["message"] or "")
    assert "PodDeleted" not in story.reasons


def test_deleted_pod_that_has_ended_at_once_is_cause() -> None:
    """Contract: a trainer that ends with SIGTERM before the controller reads its pod has not failed."""
    story = started()
    gone = failed(0, "", 143)
    gone["metadata"]["deletionTimestamp"] = "2026-11-23T12:00:50Z"
    story.look(jobset=jobset(), pods=[gone, RUNNING[1]])
    assert story.status["message"].startswith(
        "demo-node-0-0-x0 was deleted by a user or by another controller"
    )


def test_pods_that_a_restart_deletes_are_not_the_cause() -> None:
    """Contract: the failed pod can be gone before the others, while the JobSet's restart is not known yet."""
    story = started()
    story.look(jobset=jobset(), pods=[RUNNING[0], failed(1)])
    story.look(jobset=jobset(), pods=[terminating(0, "2026-11-23T12:00:50Z")])
    assert "PodDeleted" not in story.reasons
    ended = {"exitCode": 1, "reason": "Error"}
    lingers = pod(1, "Running", containerStatuses=[{"name": "trainer", "state": {"terminated": ended}}])
    lingers["metadata"]["deletionTimestamp"] = "2026-11-23T12:00:50Z"
    other = started()
    other.look(jobset=jobset(), pods=[RUNNING[0], lingers])
    assert "PodDeleted" not in other.reasons


def test_pod_that_kubelet_evicted_is_not_only_exit_code() -> None:
    """ZettaAI/zetta_utils#524: a training pod was evicted, and the job gave no reason.

    Contract: the pod's own reason explains the containers' exit codes.
    """
    message = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. "
    evicted = failed(0, "", 137)
    evicted["status"] |= {"reason": "Evicted", "message": message}
    story = started(reliability={"maxRestarts": 0})
    story.look(jobset=jobset(Failed={"reason": "FailedJobs"}), pods=[evicted, RUNNING[1]])
    assert story.status["message"] == f"demo-node-0-0-x0: Evicted: {message.strip()}"


def test_a_failure_that_was_reported_survives_its_pod() -> None:
    """kubeflow/trainer#999: after a node was lost, the job's message was only that one replica had failed.

    Contract: if the failed pod is gone when the JobSet fails, the message of this attempt is kept. A failure
    of an earlier attempt is not.
    """
    story = started(reliability={"maxRestarts": 1})
    ended = jobset(Failed={"reason": "FailedJobs", "message": "jobset failed"})
    story.look(jobset=jobset(), pods=[RUNNING[0], failed(1)])
    later = {**ended, "status": {**ended["status"], "restarts": 1}}
    decision = desired(story.job, Snapshot(jobset=later, pods=[]), story.now)
    assert decision.status.message == "jobset failed"
    story.look(jobset=ended, pods=[])
    assert story.status["message"] == f"demo-node-0-1-x0: Error, exit code 1: {PEER_LOST}"
    assert story.condition("Failed") == ("True", "RankFailed")


def test_a_gated_pod_names_its_gates() -> None:
    """kubernetes-sigs/kueue#9492: a gate that a controller did not remove kept an admitted pod pending.

    Contract: the cache keeps the gates' names, and the message shows them.
    """
    gated = pod(0, "Pending", ready=False)
    gated["metadata"] |= {"namespace": "team", "uid": "u", "resourceVersion": "1"}
    message = "Scheduling is blocked due to non-empty scheduling gates"
    gated["status"]["conditions"].append(
        {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": message}
    )
    gated["spec"] = {"schedulingGates": [{"name": "kueue.x-k8s.io/topology"}, {"name": "example.com/quota"}]}
    story = Story().created()
    story.look(jobset=jobset(), pods=[PODS.trim(gated)])
    assert story.status["message"].endswith(f"{message} (kueue.x-k8s.io/topology, example.com/quota)")


def test_a_deletion_that_a_finalizer_prevents_says_so() -> None:
    """Contract: the pods of such a job run on, so the message does not say that they are deleted."""
    one = job()
    one["metadata"]["deletionTimestamp"] = "2026-11-23T12:00:00Z"
    seen = Snapshot(queue=queue(), jobset=jobset(), pods=RUNNING)
    for finalizers, expected in (
        (["foregroundDeletion"], "the garbage collector is deleting the job's objects"),
        (["example.com/audit"], "its finalizers example.com/audit block the deletion"),
    ):
        one["metadata"]["finalizers"] = finalizers
        decision = desired(one, seen, Story().now)
        assert (decision.status.phase, decision.actions) == ("Deleted", [])
        assert (decision.status.message or "").startswith(expected)


@pytest.mark.parametrize("owner", [None, "JobSet"])
def test_service_that_has_job_s_name_is_named(owner: str | None) -> None:
    """Contract: JobSet uses a Service that exists, whatever it selects. Then no pod's name resolves, and the
    ranks only report that they waited. The job names the Service, but not its own one.
    """
    api = Api()
    metadata: Object = {"name": "demo", "namespace": "team", "uid": "s"}
    if owner:
        metadata["ownerReferences"] = [{"kind": owner, "name": "demo", "uid": "js-uid"}]
    api.put({"apiVersion": "v1", "kind": "Service", "metadata": metadata})
    api.put(queue())
    api.put(job(status={**CREATED, "phase": "Pending", "conditions": []}))
    owned = jobset()
    owned["metadata"]["namespace"] = "team"
    api.put(owned)
    waited = failed(1, "expected demo-node-0-0.demo:29500 within 300 s: seen ")
    waited["metadata"] |= {"namespace": "team", "uid": "p"}
    waited["metadata"]["labels"][names.JOBSET_LABEL] = "demo"
    api.put({"apiVersion": "v1", "kind": "Pod", **waited})
    controller = Watching(api, lambda: NOW)
    controller.list_rest()
    controller.look()
    found = api.there(names.JOB_KIND)
    assert found is not None
    message = found["status"]["message"]
    assert "expected demo-node-0-0.demo:29500 within 300 s" in message
    assert ("Service demo does not belong to the job" in message) == (owner is None)
    assert ("delete the Service, or rename the job" in message) == (owner is None)
