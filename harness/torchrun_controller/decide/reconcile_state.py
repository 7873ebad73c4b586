"""The state of one reconcile of a job: the snapshot, and the status derived from the snapshot."""

from __future__ import annotations

import copy
from datetime import datetime, timedelta
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from harness.core.kubernetes import Object
from harness.torchrun_controller.api.condition_type import Condition, found, parsed, true, with_condition
from harness.torchrun_controller.api.models import JobSpec, JobStatus, Phase, Workers
from harness.torchrun_controller.decide.containers import disruption, failure
from harness.torchrun_controller.decide.decisions import (
    Action,
    Decision,
    Delete,
    Snapshot,
    attempt,
    counted,
    owned,
)
from harness.torchrun_controller.decide.pod_deletion import deleted

WAITS = "waiting for Kueue to admit the job"
"""The message of a queued job before Kueue has given a reason why the job waits."""
UNEXPLAINED = timedelta(minutes=5)
"""The time after which the status and an Event report that a job is queued, even if Kueue has not given a
reason. Most jobs are admitted earlier and do not need this status write."""
DISRUPTED = ("Disrupted", "PodDeleted")
"""The reasons that the PodsReady condition has after a pod was disrupted or deleted. The loss of such a pod
makes the ranks in the other pods fail."""
UNKNOWN_FIELD = "extra_forbidden"
"""The type of pydantic's error about a field that the model does not have."""
MAX_SHOWN = 200
"""The maximum length of an invalid value in a message, in characters."""

Model = TypeVar("Model", bound=BaseModel)


class ReconcileState:
    """A job with its snapshot, and the status that will be written.

    `spec` and `version_skew` are set after the spec has been validated.
    """

    spec: JobSpec
    version_skew: str
    """A message about fields of the spec that this version of the controller does not support, or ""."""

    def __init__(self, job: Object, snapshot: Snapshot, now: datetime, kai: bool) -> None:
        self.job, self.snapshot, self.now, self.kai = job, snapshot, now, kai
        self.uid = job["metadata"]["uid"]
        self.old = read_status(JobStatus, job.get("status") or {})
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

    def _disruption(self) -> tuple[str, str]:
        """Return the reason and the message if a pod of the current attempt was disrupted or deleted.

        Otherwise, both are "". An evicted pod soon disappears, and then the ranks in the other pods fail. The
        status therefore keeps the message until the JobSet has restarted the ranks.
        """
        if self.ours is None:
            return "", ""
        pods = attempt(self.snapshot.pods, self.ours, terminating=True)
        if message := disruption(pods):
            return "Disrupted", message
        before, counts = found(self.old.conditions, "PodsReady"), self.status.workers
        same_attempt = (self.old.job_id, self.old.restarts) == (self.status.job_id, self.status.restarts)
        if before is None or before.reason not in DISRUPTED or self._elastic():
            # After a failure, the controllers of the Job and the JobSet delete the other pods.
            has_failed = before is not None and before.reason == "RankFailed" and same_attempt
            message = "" if has_failed else deleted(pods)
            return ("PodDeleted", message) if message else ("", "")
        all_running = counts.running + counts.succeeded == self.status.num_nodes
        return (before.reason, before.message) if same_attempt and not all_running else ("", "")

    def _failure(self, pods: list[Object]) -> str:
        """Return the failure of the pod that failed first, or "" if none failed."""
        text = failure(pods)
        if not text or not self.snapshot.foreign_service:
            return text
        name = self.job["metadata"]["name"]
        return (
            f"{text}; Service {name} does not belong to the job, so the "
            "names of the job's pods may not resolve: delete "
            "the Service, or rename the job"
        )

    def _deadline(self) -> datetime | None:
        """Return the time of the job's deadline, or None if it has no deadline or was not admitted.

        The deadline is measured from the job's last admission.
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

    def _not_reconciled(self, reason: str, message: str) -> None:
        """Set the condition Reconciled to False. The transition time is kept if the condition was already
        False."""
        self.status.conditions = self.old.conditions
        self._condition("Reconciled", False, reason, message)

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


def read_status(model: type[Model], status: Object) -> Model:
    """Return a status without the values that this version does not support.

    A newer version of the controller may have written such values before it was replaced with this version.
    With unsupported values, each reconcile of the object would fail.
    """
    try:
        return model.model_validate(status)
    except ValidationError as error:
        unsupported = {each["loc"][:2] for each in error.errors()}
    supported = copy.deepcopy(status)
    for field, *rest in unsupported:
        value = supported.get(str(field))
        if isinstance(value, list) and rest and isinstance(rest[0], int):
            value[rest[0]] = None  # A condition with an unsupported value is left out as a whole.
        else:
            supported.pop(str(field), None)
    for field, value in supported.items():
        if isinstance(value, list):
            supported[field] = [each for each in value if each is not None]
    return model.model_validate(supported)


def ended_otherwise(job: Object) -> str:
    """Return the phase in which a newer version of the controller ended a job, or "".

    This version does not support such a phase, and would start the job again. The job is therefore left
    alone.
    """
    status = job.get("status") or {}
    phase = str(status.get("phase") or "")
    return phase if status.get("completionTime") and phase not in get_args(Phase) else ""


def read_spec(spec: Object, *, has_jobset: bool) -> tuple[JobSpec, str]:
    """Return a job's spec, and a message about fields that this version does not support, or "".

    A newer CRD can have more fields, and the API server adds their defaults to existing jobs. Such fields are
    ignored. If `has_jobset` is true, fields with unsupported values are ignored too, because the JobSet has
    already been created from them. Raises ValidationError if the other fields are invalid.
    """
    try:
        return JobSpec.model_validate(spec), ""
    except ValidationError as error:
        unsupported = [each["loc"] for each in error.errors() if has_jobset or each["type"] == UNKNOWN_FIELD]
        message = spec_error(error)
    supported = copy.deepcopy(spec)
    for *parents, field in unsupported:
        parent: Any = supported
        for each in parents:
            parent = parent[each]
        del parent[field]
    return JobSpec.model_validate(supported), message


def spec_error(error: ValidationError) -> str:
    """Return the first error in the spec of a stored object as text."""
    first = error.errors()[0]
    if first["type"] != UNKNOWN_FIELD:
        return first_error(error)
    field = ".".join(map(str, first["loc"]))
    return (
        f"expected a field that this version of the controller supports, found {field}: the CRDs are newer "
        "than the controller, so update the controller"
    )


def first_error(error: ValidationError) -> str:
    """Return the first error in a spec as text: the field, the error and the invalid value."""
    first = error.errors()[0]
    value = repr(first["input"])
    value_text = value if len(value) <= MAX_SHOWN else f"{value[:MAX_SHOWN]}…"
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}; found {value_text}"
