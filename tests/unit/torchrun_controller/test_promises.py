"""What the controller's guide promises, in any order of edits, pod lives, Kueue's acts and crashes.

The API server is a model that refuses what a real one refuses (torchrun_api.py); JobSet, Kueue and the
kubelet are rules here. The controllers are the real ones, two of them: each knows as much as its watches have
told it, kind by kind, and each may die before or after any write, or lose the answer to it.
"""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torchrun_api import Api, Client, Watching
from torchrun_objects import job, pod, queue
from urllib3.exceptions import ProtocolError

from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.condition_type import parsed
from harness.torchrun_controller.api.models import FINISHED
from harness.torchrun_controller.decide.decisions import Decision
from harness.torchrun_controller.decide.job import desired
from harness.torchrun_controller.runtime import kinds
from harness.torchrun_controller.runtime.executor import Cluster
from harness.torchrun_controller.runtime.snapshot import job_snapshot

Object = dict[str, Any]
START = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
LAST = 5
RARELY = st.integers(0, LAST)
"""What ends a job happens seldom: most runs are to go on."""
WHICH = st.integers(0, 1)
LATE = st.sampled_from([kinds.JOBS, kinds.JOBSETS, kinds.PODS, kinds.QUEUES])
DAY = "2026-11-23T12:00:00Z"


class Killed(BaseException):
    """The process is gone."""


class Promises(RuleBasedStateMachine):
    """One job of two nodes, with a deadline of 100 s and a TTL of 50 s after its end."""

    @initialize(suspended=RARELY, queue_there=st.booleans(), runs=st.integers(0, LAST))
    def begin(self, suspended: int, queue_there: bool, runs: int) -> None:
        """Begin with a job that is new or, mostly, one that runs already."""
        limits = {"activeDeadlineSeconds": 100, "ttlSecondsAfterFinished": 50, "maxRestarts": 1}
        self.api, self.now = Api(), START
        self.api.put(job(suspend=suspended == LAST, reliability=limits))
        if queue_there:
            self.api.put(queue())
        self.api.asked = self._asked
        self.made = 0
        self.finished: Object | None = None
        self.ran_ok = self.strangers_deleted = self.lost = False
        self.controllers = [self._new(), self._new()]
        if runs and queue_there and suspended != LAST:
            self.controllers[0].look()
            self.kueue_admits()
            self._set_pods(("Running", "Running"))
            self.look_until_quiet(0)

    def _new(self) -> Watching:
        found = Watching(self.api, lambda: self.now)
        found.list_rest()
        return found

    @property
    def job(self) -> Object:
        found = self.api.there(names.JOB_KIND)
        assert found is not None
        return found

    @property
    def jobset(self) -> Object | None:
        return self.api.there("JobSet")

    @property
    def pods(self) -> list[Object]:
        return [item for (kind, _), item in sorted(self.api.objects.items()) if kind == "Pod"]

    def _status(self) -> Object:
        return self.job.get("status") or {}

    # -- the controllers -------------------------------------------------------------------------------
    def _asked(self, verb: str, item: Object) -> None:
        """Judge a write before it is done: what may never be made or deleted."""
        if item["kind"] != "JobSet":
            return
        if verb == "create":
            assert self._status().get("phase") not in FINISHED, "made after its end"
            assert not self.job["spec"]["suspend"], "made of a job that is suspended"
            assert self._status().get("jobID") is None, "made while the job names one"
            assert not self.lost, "made again: it might train twice"
            self.made += 1
        elif verb == "delete":
            assert self.job["spec"]["suspend"] or self._status().get("phase") in FINISHED
            assert not self._completed() or self._ttl_is_over(), "what has ended is kept until its TTL"

    def _completed(self) -> bool:
        return self._alive() and self._over()

    def _ttl_is_over(self) -> bool:
        ended = self._status().get("completionTime")
        return ended is not None and self.now >= parsed(ended) + timedelta(seconds=50)

    def _oracle(self) -> Decision:
        """Return what a controller decides that reads everything at this moment."""
        found = Cluster(Client(self.api))  # type: ignore[arg-type]
        return desired(copy.deepcopy(self.job), job_snapshot(found, self.job, kai=False), self.now)

    @rule(
        which=WHICH,
        hears=st.sampled_from(["all", "all", "jobs", "none"]),
        steps=st.integers(0, 5),
        happens=st.sampled_from(["nothing", "nothing", "nothing", "killed", "lost", "succeeds"]),
    )
    def look(self, which: int, hears: str, steps: int, happens: str) -> None:
        """Look at what is known, which may be old. After so many steps it dies, or a request or its answer is
        lost, or all ranks succeed.
        """
        if hears == "all":
            self.controllers[which].hear_all()
        elif hears == "jobs":
            self.controllers[which].hear(kinds.JOBS, len(self.api.told))
        before, right = self._status(), self._oracle().status
        if happens == "killed":
            self.api.fail(steps, Killed())
        elif happens == "lost":
            self.api.fail(steps, ProtocolError("the connection is gone"))
        elif happens == "succeeds":
            self.api.then = (steps, self._all_succeed)
        try:
            self.controllers[which].look()
        except (Killed, ProtocolError) as raised:
            if isinstance(raised, Killed):
                self.controllers[which] = self._new()
        finally:
            self.api.then = None
        after = self._status()
        if after.get("phase") in FINISHED and before.get("phase") not in FINISHED:
            # Old knowledge never decides an end. That all ranks succeeded stays true, whatever came then.
            assert after["phase"] in ({right.phase, "Succeeded"} if self.ran_ok else {right.phase})

    @rule(which=WHICH, kind=LATE, changes=st.integers(1, 3))
    def hear(self, which: int, kind: kinds.Kind, changes: int) -> None:
        """One watch comes so much further; the others do not."""
        self.controllers[which].hear(kind, changes)

    @rule(which=WHICH, kind=LATE)
    def watch_expires(self, which: int, kind: kinds.Kind) -> None:
        self.controllers[which].list_again(kind)

    @rule(which=WHICH)
    def look_until_quiet(self, which: int) -> None:
        """One that hears everything comes to rest, and then asks the API server nothing at all."""
        found = self.controllers[which]
        for _ in range(12):
            found.hear_all()
            before = (self.api.version, self.api.reads, self.api.writes)
            found.look()
            if (self.api.version, self.api.reads, self.api.writes) == before:
                self._quiet()
                return
        raise AssertionError("the controller changes or asks something at every look")

    def _quiet(self) -> None:
        """What was asked has been done, as far as it can be."""
        status, asked = self._status(), self.job["spec"]
        phase = status["phase"]
        if phase in FINISHED:
            assert not self._alive() or self._over(), "what ended still runs"
            return
        assert not asked.get("cancel")
        if asked["suspend"]:
            assert phase == "Suspended"
            assert not self._alive()
        elif "startTime" in status:
            assert (self.now - parsed(status["startTime"])).total_seconds() < 100, "the deadline"

    # -- the cluster -----------------------------------------------------------------------------------
    def _alive(self) -> bool:
        return self.jobset is not None and "deletionTimestamp" not in self.jobset["metadata"]

    def _over(self) -> bool:
        return self.jobset is not None and bool(self.jobset["status"]["conditions"])

    def _change(self, **status: Any) -> None:
        assert self.jobset is not None
        self.api.put({**self.jobset, "status": {**self.jobset["status"], **status}})

    def _end(self, kind: str) -> None:
        self._change(conditions=[{"type": kind, "status": "True", "reason": "r"}])

    def _suspended(self, suspended: bool) -> None:
        assert self.jobset is not None
        self.api.put({**self.jobset, "spec": {**self.jobset["spec"], "suspend": suspended}})

    def _set_pods(self, phases: tuple[str, ...]) -> None:
        wanted = [pod(index, phase, attempt=self._attempt()) for index, phase in enumerate(phases)]
        for one in wanted:
            one["metadata"]["labels"][names.JOBSET_LABEL] = "demo"
            one["metadata"]["namespace"] = "team"
        there = {one["metadata"]["name"] for one in wanted}
        for old in self.pods:
            if old["metadata"]["name"] not in there:
                self.api.drop("Pod", old["metadata"]["name"])
        for one in wanted:
            self.api.put({"apiVersion": "v1", "kind": "Pod", **one})

    @precondition(lambda self: self._alive() and not self._over() and self.jobset["spec"]["suspend"])
    @rule()
    def kueue_admits(self) -> None:
        self._suspended(False)
        self._set_pods(("Pending", "Pending"))

    @precondition(lambda self: self._alive() and not self._over() and self.pods)
    @rule()
    def kueue_preempts(self) -> None:
        self._suspended(True)
        self._set_pods(())

    def _attempt(self) -> int:
        assert self.jobset is not None
        return int(self.jobset["status"]["restarts"])

    @precondition(lambda self: self._alive() and not self._over() and self.pods)
    @rule(phases=st.tuples(*[st.sampled_from(["Pending", "Running", "Succeeded", "Failed"])] * 2))
    def pods_change(self, phases: tuple[str, str]) -> None:
        """Pods live and die. JobSet restarts a failed attempt once, and completes when all succeeded."""
        self._set_pods(phases)
        if "Failed" in phases and self._attempt() >= 1:
            self._end("Failed")
        elif "Failed" in phases:
            self._change(restarts=1)
        elif phases == ("Succeeded", "Succeeded"):
            self._all_succeed()

    def _all_succeed(self) -> None:
        if self._alive() and not self._over() and self.pods:
            self._set_pods(("Succeeded", "Succeeded"))
            self.ran_ok = True
            self._end("Completed")

    @precondition(lambda self: self.jobset is not None and not self._alive())
    @rule()
    def garbage_collector(self) -> None:
        self._set_pods(())
        self.api.drop("JobSet")

    @precondition(lambda self: self._alive() and self._status().get("jobID"))
    @rule(rarely=RARELY)
    def somebody_deletes_the_jobset(self, rarely: int) -> None:
        """One that the job names. It ends the job: made again it could train twice."""
        assert self.jobset is not None
        if rarely == LAST and self._status()["jobID"] == self.jobset["metadata"]["uid"]:
            self.strangers_deleted = True
            self.lost = not self.job["spec"]["suspend"]
            metadata = {**self.jobset["metadata"], "deletionTimestamp": DAY}
            self.api.put({**self.jobset, "metadata": metadata})

    @rule(seconds=st.sampled_from([1, 1, 1, 1, 30, 120]))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    # -- the user --------------------------------------------------------------------------------------
    def _edit(self, **spec: Any) -> None:
        self.api.put({**self.job, "spec": {**self.job["spec"], **spec}})

    @rule(rarely=RARELY)
    def suspend_or_resume(self, rarely: int) -> None:
        self._edit(suspend=rarely == LAST)
        self.lost = self.lost and rarely != LAST  # what is suspended and resumed begins anew

    @rule()
    def queue_comes(self) -> None:
        self.api.put(queue())

    @precondition(lambda self: self.job["spec"].get("cancel") is None)
    @rule(rarely=RARELY)
    def cancel(self, rarely: int) -> None:
        if rarely == LAST:
            self._edit(cancel=True)

    # -- what was promised -----------------------------------------------------------------------------
    @invariant()
    def an_end_is_for_ever(self) -> None:
        """The phase of a finished job, and when it ended, never change; nothing is made after it."""
        status = self._status()
        if status.get("phase") in FINISHED:
            end = {name: status.get(name) for name in ("phase", "completionTime")} | {"made": self.made}
            assert self.finished in (None, end)
            self.finished = end
        else:
            assert self.finished is None

    @invariant()
    def success_is_of_all_ranks(self) -> None:
        """A job that Succeeded had an attempt in which every rank did."""
        if self._status().get("phase") == "Succeeded":
            assert self.ran_ok

    @invariant()
    def lost_jobset_was_deleted(self) -> None:
        """A job says that its JobSet was deleted only when somebody did that."""
        for found in self._status().get("conditions") or []:
            if found["reason"] == "JobSetDeleted":
                assert self.strangers_deleted

    @invariant()
    def what_is_decided_is_true(self) -> None:
        """What a look at the present state says agrees with the pods and with what is asked."""
        status = self._oracle().status
        if status.phase == "Succeeded":
            assert self.ran_ok
        phases = [one["status"]["phase"] for one in self.pods]
        if status.phase == "Running":
            assert set(phases) & {"Running", "Succeeded"}
            assert "Pending" not in phases
        if status.phase == "Suspended":
            assert self.job["spec"]["suspend"]
        if status.phase in ("Queued", "Preempted"):
            assert self.pods == []
        if not self.job["spec"]["suspend"] and status.phase not in FINISHED:
            assert {c.type: c.status for c in status.conditions}["Suspended"] == "False"


Promises.TestCase.settings = settings(stateful_step_count=40)
TestPromises = Promises.TestCase
