"""How many requests a job costs, and what a user sees for them. The API server is a model (torchrun_api.py).

A number of requests is the same on every machine; `bench/torchrun_scale.py` measures it on a cluster.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from torchrun_api import Api, Watching
from torchrun_objects import job, pod, queue

from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.condition_type import stamp
from harness.torchrun_controller.runtime.kinds import JOBSETS, WORKLOAD_LABEL

Object = dict[str, Any]
START = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
MAX_REQUESTS = 8


class Ran:
    """A job of two pods, whose controller hears of everything and looks after each step."""

    def __init__(self, **spec: Any) -> None:
        self.api, self.now = Api(), START
        self.api.put(job(**spec))
        self.api.put(queue())
        self.controller = Watching(self.api, lambda: self.now)
        self.controller.list_rest()

    def the(self, kind: str) -> Object:
        found = self.api.there(kind)
        assert found is not None
        return found

    @property
    def status(self) -> Object:
        return dict(self.the(names.JOB_KIND)["status"])

    def condition(self, kind: str) -> Object:
        [found] = [each for each in self.status["conditions"] if each["type"] == kind]
        return dict(found)

    def look(self, seconds: int = 10) -> None:
        """Let so much time pass, hear of all changes and reconcile until nothing changes any more."""
        self.now += timedelta(seconds=seconds)
        before = None
        while before != self.api.version:
            before = self.api.version
            self.controller.hear_all()
            self.controller.look()

    # -- what Kueue, JobSet and the kubelet do -----------------------------------------------------------
    def kueue_waits(self, message: str) -> None:
        """Create the JobSet's Workload, with Kueue's reason for a wait if there is one."""
        self._workload("False", "Pending", message)

    def kueue_reserves(self, *checks: Object) -> None:
        """Reserve quota, as Kueue does before it resumes the JobSet, which waits for admission checks."""
        self._workload("True", "QuotaReserved", "Quota reserved in ClusterQueue cluster-queue", *checks)

    def _workload(self, status: str, reason: str, message: str, *checks: Object) -> None:
        uid = self.the("JobSet")["metadata"]["uid"]
        condition = {"type": "QuotaReserved", "status": status, "reason": reason, "message": message}
        condition["lastTransitionTime"] = stamp(self.now)
        metadata = {"name": "jobset-demo", "namespace": "team", "labels": {WORKLOAD_LABEL: uid}}
        found = {"conditions": [condition] if message else [], "admissionChecks": list(checks)}
        self.api.put({"kind": "Workload", "metadata": metadata, "status": found})

    def admit(self) -> None:
        one = self.the("JobSet")
        self.api.put({**one, "spec": {**one["spec"], "suspend": False}})
        self.pods("Pending", "Pending")

    def pods(self, *phases: str) -> None:
        for index, phase in enumerate(phases):
            one = pod(index, phase)
            one["metadata"]["labels"][names.JOBSET_LABEL] = "demo"
            metadata = {**one["metadata"], "namespace": "team"}
            self.api.put({"apiVersion": "v1", "kind": "Pod", **one, "metadata": metadata})

    def complete(self) -> None:
        self.pods("Succeeded", "Succeeded")
        one = self.the("JobSet")
        ended = [{"type": "Completed", "status": "True", "reason": "AllJobsCompleted"}]
        self.api.put({**one, "status": {**one["status"], "conditions": ended}})

    # -- what it cost, and what was seen ------------------------------------------------------------------
    @property
    def requests(self) -> int:
        """The number of requests that belong to this job alone. A burst of jobs shares the dry run."""
        return self.api.reads + self.api.writes

    @property
    def phases(self) -> list[str]:
        """The phases that `kubectl get --watch` has shown, in their order."""
        shown: list[str] = []
        for kind, _, item in self.api.told:
            phase = (item.get("status") or {}).get("phase")
            if kind == names.JOB_KIND and phase and shown[-1:] != [phase]:
                shown.append(phase)
        return shown

    @property
    def events(self) -> dict[str, str]:
        """Reason → message of each Event."""
        found = [item for (kind, _), item in self.api.objects.items() if kind == "Event"]
        return {item["reason"]: item["message"] for item in found}


def test_a_job_whose_phases_all_last() -> None:
    """Contract: from its creation to its end, a job costs at most MAX_REQUESTS. Each phase that lasts has one
    write of the status, and each transition its Event.
    """
    ran = Ran()
    ran.look(0)
    assert ran.status["phase"] == "Queued"
    ran.kueue_waits("")
    ran.look()
    ran.kueue_reserves()
    ran.look()
    ran.admit()
    ran.look()
    assert (ran.status["phase"], ran.status["message"]) == ("Pending", "0 of 2 pods running")
    ran.pods("Running", "Running")
    ran.look()
    ran.complete()
    ran.look()
    assert ran.phases == ["Queued", "Pending", "Running", "Succeeded"]
    assert list(ran.events) == ["Admitted", "Started", "Completed"]
    assert ran.requests <= MAX_REQUESTS
    assert ran.api.reads == 0
    assert ran.status["jobID"] == ran.the("JobSet")["metadata"]["uid"]


def test_what_one_reconcile_finds_is_written_together() -> None:
    """Contract: an admission and a start that are found together have one write and one Event, which names
    both. The conditions have the time of each.
    """
    ran = Ran()
    ran.look(0)
    ran.admit()
    ran.pods("Running", "Running")
    ran.look()
    assert ran.events == {
        "Started": "Admitted: Kueue admitted all of its pods; Started: 2 nodes × 1 processes: 2/2 ready"
    }
    for kind in ("Admitted", "PodsReady"):
        assert ran.condition(kind)["lastTransitionTime"] == "2026-11-23T12:00:10Z"
    ran.complete()
    ran.look()
    assert list(ran.events) == ["Started", "Completed"]
    assert ran.requests <= MAX_REQUESTS - 2


def test_another_controller_posts_no_part_of_an_event_again() -> None:
    """Contract: the next leader, which has posted nothing yet, finds what was posted together."""
    ran = Ran()
    ran.look(0)
    ran.admit()
    ran.pods("Running", "Running")
    ran.look()
    ran.controller = Watching(ran.api, lambda: ran.now)
    ran.controller.list_rest()
    ran.look()
    [event] = [item for (kind, _), item in ran.api.objects.items() if kind == "Event"]
    assert event["count"] == 1


def test_a_wait_for_quota_is_told() -> None:
    """Contract: Kueue's reason for a wait is in the message and in an Event as soon as Kueue gives one."""
    ran = Ran()
    ran.look(0)
    ran.kueue_waits("couldn't assign flavors to pod set node: insufficient quota for cpu")
    ran.look(1)
    assert ran.status["message"].startswith("couldn't assign flavors")
    assert ran.events == {"Queued": "couldn't assign flavors to pod set node: insufficient quota for cpu"}
    assert ran.status["jobID"] == ran.the("JobSet")["metadata"]["uid"]


def test_a_long_wait_without_a_reason_is_told() -> None:
    """Contract: a job that Kueue leaves without a word is Queued from the start; after five minutes
    its status names its JobSet, and an Event says that it waits.
    """
    ran = Ran()
    ran.look(0)
    ran.kueue_waits("")
    ran.look(60)
    assert ran.events == {}
    ran.look(241)
    assert ran.status["jobID"] == ran.the("JobSet")["metadata"]["uid"]
    assert ran.events == {"Queued": "waiting for Kueue to admit the job"}


def test_an_admission_check_is_told() -> None:
    """Contract: a job with quota that waits for an admission check names the check, at once."""
    ran = Ran()
    ran.look(0)
    ready = {"name": "budget", "state": "Ready", "message": ""}
    ran.kueue_reserves(ready, {"name": "nodes", "state": "Pending", "message": "no capacity yet"})
    ran.look(1)
    assert ran.status["message"] == (
        "quota is reserved, but admission check nodes is Pending: no capacity yet"
    )
    assert ran.events == {"Queued": ran.status["message"]}


def test_a_reservation_that_lasts_is_told() -> None:
    """Contract: a reservation of quota is a step to the admission, and a reason to wait only if it lasts."""
    ran = Ran()
    ran.look(0)
    ran.kueue_reserves()
    ran.look(1)
    assert ran.status["message"] == "waiting for Kueue to admit the job"
    ran.look(300)
    assert ran.status["message"] == "Quota reserved in ClusterQueue cluster-queue"


def test_completion_that_is_heard_before_the_pods() -> None:
    """Contract: a JobSet completes when every rank has succeeded. That is final, and nothing is read anew."""
    ran = Ran()
    ran.look(0)
    ran.admit()
    ran.pods("Running", "Running")
    ran.look()
    ran.complete()
    ran.controller.hear(JOBSETS, len(ran.api.told))
    ran.controller.look()
    assert (ran.status["phase"], ran.status["workersStatus"]) == ("Succeeded", "2/2 ready")
    assert ran.status["workers"]["succeeded"] == 2
    assert ran.api.reads == 0


def test_pods_that_end_one_after_another_cost_no_request() -> None:
    """Contract: while a job runs, a change of the number of pods alone is written after five minutes."""
    ran = Ran()
    ran.look(0)
    ran.admit()
    ran.look()
    ran.pods("Running", "Running")
    ran.look()
    before = ran.requests
    ran.pods("Running", "Succeeded")
    ran.look(250)
    assert ran.requests == before
    ran.look(60)
    assert ran.status["workers"]["succeeded"] == 1
    ran.complete()
    ran.look()
    assert ran.status["phase"] == "Succeeded"


def test_pod_that_elastic_job_loses_is_reported_at_once() -> None:
    """Contract: only the number of pods changes, because one pod is enough for the job to run."""
    ran = Ran(numNodes=None, minNodes=1, maxNodes=2)
    ran.look(0)
    ran.admit()
    ran.look()
    ran.pods("Running", "Running")
    ran.look()
    assert ran.status["workersStatus"] == "2/2 ready"
    ran.pods("Running", "Pending")
    ran.look(1)
    assert (ran.status["phase"], ran.status["workersStatus"]) == ("Running", "1/2 ready")


@pytest.mark.parametrize("kind", ["Pod", "JobSet"])
def test_a_rejected_job_is_never_queued(kind: str) -> None:
    """Contract: a job whose objects the API server rejects is Pending. No Event says that it is Queued."""

    def refuse(item: Object) -> None:
        if item["kind"] == kind:
            raise ApiException(status=403, reason="a policy")

    ran = Ran()
    ran.api.refuse = refuse
    ran.look(0)
    ran.look(60)
    assert ran.status["phase"] == "Pending"
    assert list(ran.events) == ["Rejected"]
    assert "Admitted" not in {each["type"] for each in ran.status["conditions"]}
    if kind == "Pod":
        assert ran.phases == ["Pending"]


def test_a_refused_job_has_one_write() -> None:
    """Contract: a job that cannot run as written costs its status and its Event, and no count of workers."""
    ran = Ran(numGPUs=8)
    for _ in range(3):
        ran.look(60)
    assert (ran.status["phase"], list(ran.events)) == ("Failed", ["Refused"])
    assert "workersStatus" not in ran.status
    assert ran.api.writes == len(["status", "Event"])
