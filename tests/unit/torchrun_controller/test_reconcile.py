"""Looks by copies that are old. The API server is a model (torchrun_api.py), the controller is real."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import ForbiddenError
from torchrun_api import Api, Watching
from torchrun_objects import job, pod, queue
from urllib3.exceptions import ProtocolError

from harness.torchrun_controller.api import names
from harness.torchrun_controller.runtime.kinds import JOBS
from harness.torchrun_controller.runtime.reconcile import Key

Object = dict[str, Any]
NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


@pytest.fixture
def api() -> Api:
    found = Api()
    found.put(job())
    found.put(queue())
    return found


def controller(api: Api) -> Watching:
    found = Watching(api, lambda: NOW)
    found.list_rest()
    return found


def the(api: Api, kind: str) -> Object:
    found = api.there(kind)
    assert found is not None
    return found


def status(api: Api) -> Object:
    return dict(the(api, names.JOB_KIND)["status"])


def edit(api: Api, **spec: Any) -> None:
    one = the(api, names.JOB_KIND)
    api.put({**one, "spec": {**one["spec"], **spec}})


def jobset(api: Api, *, suspend: bool = False, ended: str | None = None) -> None:
    one = the(api, "JobSet")
    conditions = [{"type": ended, "status": "True", "reason": "r"}] if ended else []
    api.put({**one, "spec": {"suspend": suspend}, "status": {**one["status"], "conditions": conditions}})


def pods(api: Api, *phases: str) -> None:
    for index, phase in enumerate(phases):
        one = pod(index, phase)
        one["metadata"]["labels"][names.JOBSET_LABEL] = "demo"
        api.put(
            {"apiVersion": "v1", "kind": "Pod", **one, "metadata": {**one["metadata"], "namespace": "team"}}
        )


def running(api: Api, found: Watching) -> None:
    """Bring the job to where it runs, and everybody knows."""
    found.look()
    jobset(api)
    pods(api, "Running", "Running")
    found.hear_all()
    found.look()
    found.hear_all()
    assert status(api)["phase"] == "Running"


def test_a_claim_of_somebody_else_is_not_mounted(api: Api) -> None:
    """Contract: a job whose name makes the name of a claim that the controller did not create has no pods; a
    claim of an earlier job of that name is mounted.
    """
    storage = {"checkpoints": {"enabled": True, "size": "1Gi", "accessMode": "ReadWriteMany"}}
    api.put(queue(storage=storage))
    metadata: Object = {"name": "demo-checkpoints", "namespace": "team", "uid": "theirs"}
    api.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata})
    found = controller(api)
    found.look()
    assert api.there("JobSet") is None
    assert "demo-checkpoints: the claim exists" in status(api)["message"]

    def relabel(minutes: int, **labels: str) -> None:
        metadata["labels"] = labels
        api.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata})
        found.hear_all()
        found.reconciler.now = lambda: NOW + timedelta(minutes=minutes)
        found.look()

    relabel(1, **{names.QUEUE_LABEL: "cpu"})  # from the queue's `resources`
    assert api.there("JobSet") is None
    relabel(2, **{names.QUEUE_LABEL: "cpu", names.JOB_LABEL: "other"})
    assert api.there("JobSet") is None
    relabel(3, **{names.QUEUE_LABEL: "cpu", names.JOB_LABEL: "demo"})
    assert api.there("JobSet") is not None


def test_the_claim_for_datasets_is_that_of_the_queue(api: Api) -> None:
    """Contract: jobs of one queue share the claim that the first of them created, but not another one."""
    storage = {"datasets": {"enabled": True, "size": "1Gi", "accessMode": "ReadWriteMany"}}
    api.put(queue(storage=storage))
    labels = {names.QUEUE_LABEL: "gpu", names.JOB_LABEL: "first"}
    metadata: Object = {"name": "cpu-datasets", "namespace": "team", "uid": "theirs", "labels": labels}
    api.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata})
    found = controller(api)
    found.look()
    assert api.there("JobSet") is None
    labels[names.QUEUE_LABEL] = "cpu"
    api.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata})
    found.hear_all()
    found.reconciler.now = lambda: NOW + timedelta(minutes=1)
    found.look()
    assert api.there("JobSet") is not None


def test_job_that_goes_well_is_not_read_anew(api: Api) -> None:
    """Contract: from creation to success nothing is read but by watches, and only changes are written."""
    found = controller(api)
    running(api, found)
    pods(api, "Succeeded", "Succeeded")
    jobset(api, ended="Completed")
    for _ in range(3):
        found.hear_all()
        found.look()
    assert status(api)["phase"] == "Succeeded"
    assert api.reads == 0
    assert api.checks == 1  # its pod, before anything is created
    posted = len([kind for kind, _ in api.objects if kind == "Event"])
    assert api.writes == posted + len(["Pending", "JobSet", "Running", "Succeeded"])


def test_the_phase_that_it_wrote_itself_is_counted(api: Api) -> None:
    """Contract: the metric shows a job's phase before and after the watch has told what was written."""
    found = controller(api)
    running(api, found)
    pods(api, "Succeeded", "Succeeded")
    jobset(api, ended="Completed")
    found.hear_all()
    found.look()
    for _ in range(2):
        counted = found.reconciler.metrics.registry.get_sample_value
        assert counted("torchrun_jobs", {"namespace": "team", "phase": "Succeeded"}) == 1
        assert counted("torchrun_jobs", {"namespace": "team", "phase": "Running"}) is None
        found.hear_all()


def test_old_job_is_not_acted_on(api: Api) -> None:
    """Contract: a creation that was lost is made up for only if the job still is as it was: the same status
    is written again, to ask that.
    """
    found = controller(api)
    api.fail(2, ProtocolError("lost before it came"))  # the status is written, the JobSet is not
    with pytest.raises(ProtocolError):
        found.look()
    edit(api, suspend=True)  # no watch has told that
    found.look()
    assert api.there("JobSet") is None
    found.look()  # it has read the job that it was too old for
    assert status(api)["phase"] == "Suspended"


def test_cancelled_after_all_ranks_succeeded(api: Api) -> None:
    """Contract: what the ranks did comes before what is asked, also when only the wish has been heard."""
    found = controller(api)
    running(api, found)
    pods(api, "Succeeded", "Succeeded")
    jobset(api, ended="Completed")
    edit(api, cancel=True)
    found.hear(JOBS, 10)
    found.look()
    assert status(api)["phase"] == "Succeeded"


def test_jobset_not_seen_yet_is_not_lost(api: Api) -> None:
    """Contract: a job that names a JobSet which no watch has told yet is no job whose JobSet was deleted."""
    one, other = controller(api), controller(api)
    one.look()
    jobset(api)
    one.hear_all()
    one.look()
    assert status(api)["jobID"] == the(api, "JobSet")["metadata"]["uid"]
    other.hear(JOBS, 10)
    other.look()
    assert status(api)["phase"] == "Pending"
    assert "deleted" not in str(status(api))


def test_jobset_of_the_time_before_is_not_taken_again(api: Api) -> None:
    """Contract: suspended by one controller and resumed: the other one does not take the JobSet that ends."""
    one, other = controller(api), controller(api)
    running(api, one)
    other.hear_all()
    edit(api, suspend=True)
    one.hear_all()
    one.look()
    assert the(api, "JobSet")["metadata"]["deletionTimestamp"]
    edit(api, suspend=False)
    other.hear(JOBS, 10)  # and not that the JobSet is ending
    other.look()
    assert status(api).get("jobID") is None
    assert status(api)["phase"] == "Pending"
    api.drop("JobSet")
    other.hear_all()
    other.look()
    assert "deletionTimestamp" not in the(api, "JobSet")["metadata"]


def test_deletion_whose_answer_was_lost(api: Api) -> None:
    """Contract: the same controller, which does not know that its deletion was done."""
    found = controller(api)
    running(api, found)
    edit(api, suspend=True)
    found.hear(JOBS, 10)
    api.fail(3, ProtocolError("done, and the answer lost"))
    with pytest.raises(ProtocolError):
        found.look()
    assert the(api, "JobSet")["metadata"]["deletionTimestamp"]
    edit(api, suspend=False)
    found.hear(JOBS, 10)
    found.look()
    assert status(api).get("jobID") is None


def test_refusal_by_an_old_queue_is_asked_again(api: Api) -> None:
    """Contract: a queue that was mended before the job came refuses it no more, however late it is heard."""
    broken = queue()
    broken["spec"].pop("image")
    api.put(broken)
    api.drop(names.JOB_KIND)
    found = controller(api)
    api.put(queue())
    api.put(job())
    found.hear(JOBS, 10)
    found.look()
    assert status(api)["phase"] == "Queued"
    assert api.there("JobSet") is not None


def test_what_ended_meanwhile_is_kept(api: Api) -> None:
    """Contract: the JobSet of a cancelled job is deleted while it runs. One that has ended stays until the
    TTL, with the logs of its pods, also when its end has not been heard of.
    """
    found = controller(api)
    running(api, found)
    edit(api, cancel=True)
    found.hear(JOBS, 10)
    found.look()
    assert status(api)["phase"] == "Cancelled"
    jobset(api, ended="Failed")
    found.look()
    assert "deletionTimestamp" not in the(api, "JobSet")["metadata"]


def test_the_number_of_pods_is_written_once_a_minute(api: Api) -> None:
    """Contract: each phase has one write at once; the pods that start meanwhile are counted later, in one."""
    found, written = controller(api), []
    found.look()
    jobset(api)
    found.hear_all()
    found.look()
    for second in range(1, 63):
        found.reconciler.now = lambda second=second: NOW + timedelta(seconds=second)
        pods(api, "Running" if second > 2 else "Pending", "Pending")
        found.hear_all()
        before = api.version
        again = found.look()
        if api.version > before:
            written.append((second, status(api)["message"]))
        elif second == 3:
            assert again == 2.0
    assert written == [(60, "1 of 2 pods running")]
    pods(api, "Running", "Running")
    found.hear_all()
    found.look()
    assert (status(api)["phase"], status(api)["workersStatus"]) == ("Running", "2/2 ready")


def test_a_pod_without_a_node_is_said_at_once(api: Api) -> None:
    """Contract: the reason why pods do not run is no number of pods: it is not kept back."""
    found = controller(api)
    found.look()
    jobset(api)
    found.hear_all()
    found.look()
    assert status(api)["message"] == "0 of 2 pods running"
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}
    one = pod(0, "Pending", conditions=[scheduled])
    one["metadata"]["labels"][names.JOBSET_LABEL] = "demo"
    api.put({"apiVersion": "v1", "kind": "Pod", **one, "metadata": {**one["metadata"], "namespace": "team"}})
    found.hear_all()
    found.look()
    assert "Unschedulable: no node" in status(api)["message"]


def test_cause_from_event_replaces_scheduler_message_immediately(api: Api) -> None:
    """Contract: the Event that names the cause of late pods is not held back after a scheduler's message."""
    found = controller(api)
    found.look()
    jobset(api)
    found.hear_all()
    found.look()
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no claim"}
    one = pod(0, "Pending", conditions=[scheduled])
    one["metadata"]["labels"][names.JOBSET_LABEL] = "demo"
    one["spec"] = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}
    api.put({"apiVersion": "v1", "kind": "Pod", **one, "metadata": {**one["metadata"], "namespace": "team"}})
    found.hear_all()
    found.look()
    assert "Unschedulable: no claim" in status(api)["message"]
    later = NOW + timedelta(seconds=6)
    api.put(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "data.1", "namespace": "team"},
            "type": "Warning",
            "reason": "ProvisioningFailed",
            "message": 'storageclass.storage.k8s.io "fast" not found',
            "involvedObject": {"kind": "PersistentVolumeClaim", "name": "data"},
            "lastTimestamp": later.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
    )
    found.reconciler.now = lambda: later
    found.look()
    assert 'ProvisioningFailed: storageclass.storage.k8s.io "fast" not found' in status(api)["message"]


def test_status_of_job_that_newer_version_ended_is_not_written(api: Api) -> None:
    """Contract: a rollback of the controller loses no result."""
    ended = {"phase": "Archived", "completionTime": "2026-11-23T11:00:00Z", "message": "kept"}
    api.put({**the(api, names.JOB_KIND), "status": ended})
    controller(api).look()
    assert status(api) == ended
    assert api.there("JobSet") is None


def test_finalizer_that_controller_may_not_remove_is_reported(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: with the role of `--gang kueue`, a queue from `--gang kai` says why it is not gone."""
    ending = {"finalizers": [names.FINALIZER], "deletionTimestamp": "2026-11-23T11:00:00Z"}
    one = queue()
    api.put({**one, "metadata": {**one["metadata"], **ending}})
    found = controller(api)

    def refuse(*_: object) -> None:
        raise ForbiddenError(ApiException(status=403, reason="Forbidden"))

    monkeypatch.setattr(found.reconciler.cluster, "_finalizers", refuse)
    found.look(Key("queue", "team", one["metadata"]["name"]))
    stored = api.there(names.QUEUE_KIND, one["metadata"]["name"])
    assert stored is not None
    status_ = stored["status"]
    assert [each["reason"] for each in status_["conditions"] if each["type"] == "Ready"] == [
        "KaiQueueRemains"
    ]
    assert status_["phase"] == "Terminating"
