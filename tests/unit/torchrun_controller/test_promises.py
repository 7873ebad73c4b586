"""S4's promises as invariants, over any order of (edit, pods live and die, Kueue, the controller dies).

The cluster here is a model: it does what the API server, JobSet and Kueue do with what was decided. The
controller may die after any single step of a look, and a second one may look with it.
"""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torchrun_objects import job, pod, queue

from harness.torchrun_controller.conditions import parsed
from harness.torchrun_controller.desired import desired
from harness.torchrun_controller.models import FINISHED
from harness.torchrun_controller.observed import Action, Create, Decision, Delete, Seen

Object = dict[str, Any]
START = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


LAST = 5
RARELY = st.integers(0, LAST)
"""What ends a job happens seldom: most runs are to go on."""


class Promises(RuleBasedStateMachine):
    """One job of two nodes, with a deadline of 100 s and a TTL of 50 s after its end."""

    @initialize(suspended=RARELY, queue_there=st.booleans())
    def begin(self, suspended: int, queue_there: bool) -> None:
        limits = {"activeDeadlineSeconds": 100, "ttlSecondsAfterFinished": 50, "maxRestarts": 1}
        self.job = job(suspend=suspended == LAST, reliability=limits)
        self.queue = queue() if queue_there else None
        self.jobset: Object | None = None
        self.pods: list[Object] = []
        self.now = START
        self.made = 0
        self.finished: Object | None = None
        self.ran_ok = False

    # -- the controller --------------------------------------------------------------------------------
    def _decide(self) -> Decision:
        seen = Seen(queue=self.queue, jobset=copy.deepcopy(self.jobset), pods=copy.deepcopy(self.pods))
        return desired(copy.deepcopy(self.job), seen, self.now)

    def _write(self, decision: Decision) -> None:
        self.job["status"] = decision.status.model_dump(by_alias=True, exclude_none=True)

    @rule(steps=st.integers(0, 3))
    def look_and_die(self, steps: int) -> None:
        """Look once, and stop after so many steps: the status is the first, each action another."""
        decision = self._decide()
        if steps >= 1:
            self._write(decision)
            for action in decision.actions[: steps - 1]:
                self._do(action)

    @rule()
    def look_until_quiet(self) -> None:
        """The controller that lives looks until nothing changes: it must come to rest."""
        for _ in range(10):
            before = (copy.deepcopy(self.job["status"]), copy.deepcopy(self.jobset))
            decision = self._decide()
            self._write(decision)
            for action in decision.actions:
                self._do(action)
            if (self.job["status"], self.jobset) == before:
                self._quiet()
                return
        raise AssertionError("the controller changes something at every look")

    def _quiet(self) -> None:
        """What was asked has been done, as far as it can be."""
        status, asked = self.job["status"], self.job["spec"]
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

    @rule()
    def two_controllers(self) -> None:
        """Both decide on the same state; the status of the second is refused, so it does nothing."""
        first, _ = self._decide(), self._decide()
        self._write(first)
        for action in [*first.actions, *first.actions]:
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Create(document) if document["kind"] == "JobSet":
                if self.jobset is None:
                    assert (self.job.get("status") or {}).get("phase") not in FINISHED
                    self.made += 1
                    self.jobset = copy.deepcopy(document)
                    self.jobset["metadata"].update(uid=f"js-{self.made}", resourceVersion="1")
                    self.jobset["status"] = {"restarts": 0, "conditions": []}
            case Delete(kind="JobSet", uid=uid, resource_version=version) if self.jobset is not None:
                metadata = self.jobset["metadata"]
                if metadata["uid"] == uid and version in (None, metadata["resourceVersion"]):
                    metadata["deletionTimestamp"] = "2026-11-23T12:00:00Z"

    # -- the cluster -----------------------------------------------------------------------------------
    def _alive(self) -> bool:
        return self.jobset is not None and "deletionTimestamp" not in self.jobset["metadata"]

    def _over(self) -> bool:
        return self.jobset is not None and bool(self.jobset["status"]["conditions"])

    def _end(self, kind: str) -> None:
        assert self.jobset is not None
        self.jobset["status"]["conditions"] = [{"type": kind, "status": "True", "reason": "r"}]
        self.jobset["metadata"]["resourceVersion"] = "2"

    @precondition(lambda self: self._alive() and not self._over() and self.jobset["spec"]["suspend"])
    @rule()
    def kueue_admits(self) -> None:
        assert self.jobset is not None
        self.jobset["spec"]["suspend"] = False
        self.pods = [pod(index, "Pending", attempt=self._attempt()) for index in (0, 1)]

    @precondition(lambda self: self._alive() and not self._over() and self.pods)
    @rule()
    def kueue_preempts(self) -> None:
        assert self.jobset is not None
        self.jobset["spec"]["suspend"], self.pods = True, []

    def _attempt(self) -> int:
        assert self.jobset is not None
        return int(self.jobset["status"]["restarts"])

    @precondition(lambda self: self._alive() and not self._over() and self.pods)
    @rule(phases=st.tuples(*[st.sampled_from(["Pending", "Running", "Succeeded", "Failed"])] * 2))
    def pods_change(self, phases: tuple[str, str]) -> None:
        """Pods live and die. JobSet restarts a failed attempt once, and completes when all succeeded."""
        assert self.jobset is not None
        self.pods = [pod(index, phase, attempt=self._attempt()) for index, phase in enumerate(phases)]
        if "Failed" in phases and self._attempt() >= 1:
            self._end("Failed")
        elif "Failed" in phases:
            self.jobset["status"]["restarts"] = 1
            self.jobset["metadata"]["resourceVersion"] = "3"
        elif phases == ("Succeeded", "Succeeded"):
            self.ran_ok = True
            self._end("Completed")

    @precondition(lambda self: self.jobset is not None and not self._alive())
    @rule()
    def garbage_collector(self) -> None:
        self.jobset, self.pods = None, []

    @precondition(lambda self: self._alive() and (self.job.get("status") or {}).get("jobID"))
    @rule(rarely=RARELY)
    def somebody_deletes_the_jobset(self, rarely: int) -> None:
        """One that the controller has seen. It ends the job: made again it could train twice."""
        assert self.jobset is not None
        if rarely == LAST and self.job["status"]["jobID"] == self.jobset["metadata"]["uid"]:
            self.jobset["metadata"]["deletionTimestamp"] = "2026-11-23T12:00:00Z"
            if not self.job["spec"]["suspend"]:
                self._write(self._decide())
                assert self.job["status"]["phase"] in FINISHED

    @rule(seconds=st.sampled_from([1, 1, 1, 1, 30, 120]))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    # -- the user --------------------------------------------------------------------------------------
    @rule(rarely=RARELY)
    def suspend_or_resume(self, rarely: int) -> None:
        self.job["spec"]["suspend"] = rarely == LAST

    @rule()
    def queue_comes(self) -> None:
        self.queue = queue()

    @precondition(lambda self: self.job["spec"].get("cancel") is None)
    @rule(rarely=RARELY)
    def cancel(self, rarely: int) -> None:
        if rarely == LAST:
            self.job["spec"]["cancel"] = True

    # -- what was promised -----------------------------------------------------------------------------
    @invariant()
    def an_end_is_for_ever(self) -> None:
        """The phase of a finished job, and when it ended, never change; nothing is made after it."""
        status = self.job.get("status") or {}
        if status.get("phase") in FINISHED:
            end = {name: status.get(name) for name in ("phase", "completionTime")} | {"made": self.made}
            assert self.finished in (None, end)
            self.finished = end
        else:
            assert self.finished is None

    @invariant()
    def success_is_of_all_ranks(self) -> None:
        """A job that Succeeded had an attempt in which every rank did."""
        if (self.job.get("status") or {}).get("phase") == "Succeeded":
            assert self.ran_ok

    @invariant()
    def quiet_status_is_true(self) -> None:
        """What a look at the present state says agrees with the pods and with what is asked."""
        if not hasattr(self, "job"):
            return
        said = self._decide().status
        if said.phase == "Succeeded":
            assert self.ran_ok
        phases = [one["status"]["phase"] for one in self.pods]
        if said.phase == "Running":
            assert set(phases) & {"Running", "Succeeded"}
            assert "Pending" not in phases
        if said.phase == "Suspended":
            assert self.job["spec"]["suspend"]
        if said.phase in ("Queued", "Preempted"):
            assert self.pods == []
        if not self.job["spec"]["suspend"] and said.phase not in FINISHED:
            assert {c.type: c.status for c in said.conditions}["Suspended"] == "False"


Promises.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestPromises = Promises.TestCase
