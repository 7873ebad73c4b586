"""The state of one reconcile of a job: the snapshot, and the status derived from the snapshot."""

from __future__ import annotations

from datetime import datetime, timedelta

from pydantic import ValidationError

from harness.core.kubernetes import Object
from harness.torchrun_controller.api.condition_type import Condition, found, parsed, true, with_condition
from harness.torchrun_controller.api.models import JobSpec, JobStatus, Phase, Workers
from harness.torchrun_controller.decide.containers import disruption
from harness.torchrun_controller.decide.decisions import (
    Action,
    Decision,
    Delete,
    Snapshot,
    attempt,
    counted,
    owned,
)

WAITS = "waits for Kueue to admit it"
"""The message of a queued job before Kueue has given a reason why the job waits."""
UNEXPLAINED = timedelta(minutes=5)
"""The time after which the status and an Event report that Kueue has given no reason why a job is queued.
Most jobs are admitted earlier and do not need this status write.
"""
MAX_SHOWN = 200
"""The maximum length of an invalid value in a message, in characters."""


class ReconcileState:
    """A job with its snapshot, and the status that will be written.

    `spec` is set after it has been validated.
    """

    spec: JobSpec

    def __init__(self, job: Object, snapshot: Snapshot, now: datetime, kai: bool) -> None:
        self.job, self.snapshot, self.now, self.kai = job, snapshot, now, kai
        self.uid = job["metadata"]["uid"]
        self.old = JobStatus.model_validate(job.get("status") or {})
        self.status = self.old.model_copy(
            update={
                "observed_generation": job["metadata"].get("generation"),
                "message": None,
                "waiting": None,
            }
        )
        if found(self.old.conditions, "Reconciled"):
            self._condition("Reconciled", True, "Reconciled")
        self.ours = (
            snapshot.jobset if snapshot.jobset is not None and owned(snapshot.jobset, self.uid) else None
        )

    def _count(self, pods: list[Object]) -> None:
        self._set_workers(counted(pods))

    def _set_workers(self, counts: Workers) -> None:
        self.status.workers = counts
        self.status.workers_status = f"{counts.ready + counts.succeeded}/{self.status.num_nodes or 0} ready"

    def _min_pods(self) -> int:
        return self.spec.min_nodes or self.status.num_nodes or 1

    def _elastic(self) -> bool:
        return self._min_pods() != self.status.num_nodes

    def _disruption(self) -> str:
        """Return the message about a disrupted pod of the current attempt, or "".

        An evicted pod soon disappears, and the ranks in other pods then fail because of it. The status
        therefore keeps the message until the JobSet has restarted the ranks.
        """
        if self.ours is None:
            return ""
        message = disruption(attempt(self.snapshot.pods, self.ours, terminating=True))
        before, counts = found(self.old.conditions, "PodsReady"), self.status.workers
        if message or before is None or before.reason != "Disrupted" or self._elastic():
            return message
        same_attempt = (self.old.job_id, self.old.restarts) == (self.status.job_id, self.status.restarts)
        all_running = counts.running + counts.succeeded == self.status.num_nodes
        return before.message if same_attempt and not all_running else ""

    def _deadline(self) -> datetime | None:
        """Return the time of the job's deadline, or None.

        It is measured from the job's admission after the last suspension.
        """
        seconds = self.spec.reliability.active_deadline_seconds
        if seconds is None or self.status.start_time is None:
            return None
        return parsed(self.status.start_time) + timedelta(seconds=seconds)

    def _resumed(self) -> bool:
        before = found(self.old.conditions, "Suspended")
        return before is not None and (before.status == "True" or before.reason == "Resumed")

    def _was_true(self, kind: str) -> bool:
        return true(self.old.conditions, kind)

    def _condition(self, kind: str, holds: bool, reason: str, message: str = "") -> None:
        self.status.conditions = with_condition(
            self.status.conditions,
            Condition(
                type=kind,
                status="True" if holds else "False",
                reason=reason,
                message=message,
                observed_generation=self.job["metadata"].get("generation"),
            ),
            self.now,
        )

    def _decision(
        self,
        phase: Phase,
        message: str | None,
        actions: list[Action] | None = None,
        requeue_at: datetime | None = None,
    ) -> Decision:
        self.status.phase, self.status.message = phase, message
        return Decision(self.status, actions or [], requeue_at)


def delete(item: Object, *, unchanged: bool = False) -> Delete:
    """Return the action that deletes an object.

    If `unchanged` is true, the object is deleted only if it still has this resource version.
    """
    metadata = item["metadata"]
    version = metadata.get("resourceVersion") if unchanged else None
    return Delete(item["apiVersion"], item["kind"], metadata["name"], metadata["uid"], version)


def first_error(error: ValidationError) -> str:
    """Return the first error in a spec as text: the field, the error and the invalid value."""
    first = error.errors()[0]
    value = repr(first["input"])
    value_text = value if len(value) <= MAX_SHOWN else f"{value[:MAX_SHOWN]}…"
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}; found {value_text}"
