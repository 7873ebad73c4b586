"""Reconcile one object: read, decide, write the status, execute the actions, post Events.

A reconcile reads the watch caches, which may be outdated. This is safe for three reasons. A status replaces
only the job's newest version, an object is created only if its name is unused, and irreversible decisions
(see `is_irreversible`) are repeated using the API server's current state.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import ForbiddenError
from pydantic import ValidationError
from urllib3.exceptions import HTTPError, ReadTimeoutError

from harness.core.kubernetes import Object
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.condition_type import Condition, true, with_condition
from harness.torchrun_controller.api.condition_type import found as condition_of
from harness.torchrun_controller.api.models import FINISHED, JobStatus, QueueSpec
from harness.torchrun_controller.api.rejected import TRANSIENT, Rejected
from harness.torchrun_controller.decide import events
from harness.torchrun_controller.decide import job as desired
from harness.torchrun_controller.decide import queue as queues
from harness.torchrun_controller.decide.decisions import Action, Check, Create, Decision, Snapshot, ending
from harness.torchrun_controller.decide.reconcile_state import UNEXPLAINED, ended_otherwise, read_status
from harness.torchrun_controller.decide.silence import Silence
from harness.torchrun_controller.objects import dry_run_pods, etcd
from harness.torchrun_controller.objects.permission_check import check_pod
from harness.torchrun_controller.plan.gpu_layout import Refused
from harness.torchrun_controller.runtime.caches import Caches
from harness.torchrun_controller.runtime.event_cache import Warnings, needed
from harness.torchrun_controller.runtime.event_writer import Recorder
from harness.torchrun_controller.runtime.executor import Cluster
from harness.torchrun_controller.runtime.kinds import JOBS, QUEUES, SERVICES
from harness.torchrun_controller.runtime.logging_setup import about, short
from harness.torchrun_controller.runtime.metrics import Metrics
from harness.torchrun_controller.runtime.snapshot import Source, job_snapshot, queue_of, queue_snapshot

log = logging.getLogger(__name__)
Clock = Callable[[], datetime]
REQUEUE_SOON_SECONDS = 10.0
"""The delay, in seconds, before the next reconcile after an action, unless an event occurs earlier."""
REFUSED_SECONDS = 5.0
"""The delay, in seconds, before the API server is asked again to check pods that it rejected."""
RECHECK_SECONDS = 10.0
"""The delay, in seconds, before the next reconcile of a queue that is not ready. The delay is needed because
some of the queue's objects are not watched.
"""
PROGRESS = timedelta(seconds=60)
"""The minimum time between two status writes if only the number of pods or a message has changed."""
PERSISTENT = timedelta(seconds=60)
"""The time after which repeated transient errors are reported. Without this limit, the status of a job that
waits for an unresponsive webhook would never contain the reason."""
MEND = "change the queue, or create the objects that it refers to"
REQUEUE_SECONDS = 0.2
"""The delay, in seconds, before the next reconcile after a write failed because the cache was outdated."""


class Key(NamedTuple):
    """The key of a job or queue in the work queue."""

    kind: Literal["job", "queue"]
    namespace: str
    name: str


def clock() -> datetime:
    """Return the current time, truncated to whole seconds like the timestamps of conditions."""
    return datetime.now(UTC).replace(microsecond=0)


def is_irreversible(before: JobStatus, decision: Decision, created_jobsets: set[str]) -> bool:
    """Return whether a decision is irreversible, and must therefore not be based on an outdated cache.

    A decision is irreversible if it ends a job, deletes an object, or gives a job a new JobSet. There are two
    exceptions, which are safe with an outdated cache. First, the new JobSet was created by this process.
    Second, the job has succeeded because all of its pods have succeeded, which is final.
    """
    status = decision.status
    if any(not isinstance(action, Check | Create) for action in decision.actions):
        return True
    if status.phase in FINISHED and before.phase not in FINISHED:
        return status.phase != "Succeeded" or status.workers.succeeded != status.num_nodes
    if true(status.conditions, "CleanedUp") and not true(before.conditions, "CleanedUp"):
        return True
    return status.job_id != before.job_id and status.job_id not in created_jobsets


def patience(before: JobStatus, status: JobStatus) -> timedelta:
    """Return how long after the last write of a job's status the new status may be written.

    The time is 0 if the new status reports lost pods or a new reason for late pods, or if more has changed
    than the number of pods or the message.
    """
    queued = before.phase == status.phase == "Queued"
    running = before.phase == status.phase == "Running"

    def facts(job_status: JobStatus) -> JobStatus:
        conditions = [
            each.model_copy(update={"message": ""}) if each.type == "PodsReady" else each
            for each in job_status.conditions
        ]
        ignored = {"workers": None, "workers_status": None, "message": None, "waiting": None}
        ignored_ids = {"job_id": None} if queued else {}
        return job_status.model_copy(update={**ignored, **ignored_ids, "conditions": conditions})

    def active(job_status: JobStatus) -> int:
        return job_status.workers.running + job_status.workers.succeeded

    def reason(job_status: JobStatus) -> str | None:
        ready = condition_of(job_status.conditions, "PodsReady")
        is_late = job_status.phase == "Pending" and ready is not None and ready.reason != "PodsNotReady"
        return re.sub(r"\d+", "", job_status.message or "") if is_late else None

    if before == status or active(status) < active(before):
        return timedelta(0)
    if facts(before) != facts(status) or reason(before) != reason(status):
        return timedelta(0)
    is_quiet = (queued or running) and before.message == status.message
    return UNEXPLAINED if is_quiet else PROGRESS


def _needs_etcd(decision: Decision) -> bool:
    """Return whether a decision starts a job that uses the default etcd."""
    starts = any(isinstance(each, Create) and each.document["kind"] == "JobSet" for each in decision.actions)
    return starts and etcd.ENDPOINT in (decision.status.torchrun_command or "")


def _seconds_until(requeue_at: datetime | None, now: datetime) -> float | None:
    return None if requeue_at is None else max(0.0, (requeue_at - now).total_seconds())


class Reconciler:
    """Reconciles jobs and queues.

    The state of a reconciler consists of the watch caches, its own writes and the posted Events. If the state
    is lost, it can be rebuilt.
    """

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        cluster_queue: str,
        now: Clock = clock,
        metrics: Metrics | None = None,
    ) -> None:
        self.cluster, self.caches, self.cluster_queue, self.now = cluster, caches, cluster_queue, now
        cluster.wrote = caches.wrote
        self.metrics = metrics or Metrics()
        self.metrics.jobs = lambda: caches.all(JOBS)
        self.recorder = Recorder(cluster.kube, self.metrics)
        self.warnings = Warnings(cluster.events)
        self.silence = Silence(cluster.last_line)
        self._written: dict[Key, datetime] = {}
        """The time when each job's status was last written."""
        self._rejected_at: dict[Key, datetime] = {}
        """The time when the API server last rejected the pods of each job or queue."""
        self._failing_since: dict[Key, datetime] = {}
        """For each job or queue with transient errors, the time of the first consecutive error."""

    def reconcile(self, key: Key) -> float | None:
        """Reconcile an object.

        Return the number of seconds until the next reconcile if no event occurs earlier, or None.

        Errors are raised, and also reported in one of the object's conditions. Transient API errors are
        reported only after PERSISTENT.
        """
        with self.metrics.time_reconcile(key.kind):
            try:
                after = self._job(key) if key.kind == "job" else self._queue(key)
            except Exception as error:
                if not self._may_pass(key, error):
                    self._failed(key, error)
                raise
            self._failing_since.pop(key, None)
            return after

    def _may_pass(self, key: Key, error: Exception) -> bool:
        """Return whether an error is transient and has persisted for less than PERSISTENT.

        If the API server cannot be reached, the error always counts as transient, because a status cannot be
        written either.
        """
        if isinstance(error, HTTPError) and not isinstance(error, ReadTimeoutError):
            return True
        is_transient = isinstance(error, HTTPError) or (
            isinstance(error, ApiException) and int(error.status or 0) in TRANSIENT
        )
        return is_transient and self.now() - self._failing_since.setdefault(key, self.now()) < PERSISTENT

    def _job(self, key: Key) -> float | None:
        job = self.caches.one(JOBS, key.namespace, key.name)
        if job is None:
            self.recorder.forget(names.JOB_KIND, key.namespace, key.name)
            self._rejected_at.pop(key, None)
            self._written.pop(key, None)
            return None
        if phase := ended_otherwise(job):
            log.warning("a newer version of the controller ended this job: %s", phase, extra=about(*key))
            return None
        now = self.now()
        before = read_status(JobStatus, job.get("status") or {})
        decision = self._decision(job, before, now)
        due = self._written.get(key, now - UNEXPLAINED) + patience(before, decision.status)
        if now < due and not decision.actions:
            return _seconds_until(min(due, decision.requeue_at or due), now)
        return self._apply(key, job, before, decision, now)

    def _apply(
        self, key: Key, job: Object, before: JobStatus, decision: Decision, now: datetime
    ) -> float | None:
        """Carry out a decision: check the pods, write the status, execute the other actions and post the
        Events."""
        checks: list[Action] = [action for action in decision.actions if isinstance(action, Check)]
        if checks and self._too_early(key, now):
            return REFUSED_SECONDS
        try:
            self._act(key, job, checks)
            if not self._write(job, before, decision):
                return REQUEUE_SECONDS
            self._act(key, job, [action for action in decision.actions if action not in checks])
        except Rejected as rejected:
            return self._rejected(key, rejected)
        self.recorder.record(job, events.of_job(before, decision.status), now)
        if decision.actions:
            return REQUEUE_SOON_SECONDS
        return _seconds_until(decision.requeue_at, now)

    def _rejected(self, key: Key, rejected: Rejected) -> float | None:
        """Record in a job's status that the API server rejected one of its objects."""
        self._rejected_at[key] = self.now()
        job = self.caches.one(JOBS, key.namespace, key.name)
        if job is None:
            return None
        now, before = self.now(), read_status(JobStatus, job.get("status") or {})
        decision = self._decision(job, before, now, rejected)
        if not self._write(job, before, decision):
            return REQUEUE_SECONDS
        self.recorder.record(job, events.of_job(before, decision.status), now)
        return _seconds_until(decision.requeue_at, now)

    def _too_early(self, key: Key, now: datetime) -> bool:
        """Return whether the API server rejected the object's pods less than REFUSED_SECONDS ago.

        During this time, the pods are not checked again. Without this delay, the object might be reconciled
        continuously, because each message of the API server may contain a new number, such as a port. A new
        message changes the status, which triggers a reconcile.
        """
        at = self._rejected_at.get(key)
        return at is not None and now - at < timedelta(seconds=REFUSED_SECONDS)

    def _write(self, job: Object, before: JobStatus, decision: Decision) -> bool:
        """Write the status of a job. Return whether `job` was up to date."""
        if not self.cluster.write_status(job, decision.status, acting=bool(decision.actions)):
            return False
        if before != decision.status:
            self._written[_key_of(job)] = self.now()
        self.cluster.created_jobsets.discard(decision.status.job_id or "")
        self._note(job, before, decision.status)
        return True

    def _decision(
        self, job: Object, before: JobStatus, now: datetime, rejected: Rejected | None = None
    ) -> Decision:
        decision = self._decide(job, self.caches, now, rejected)
        if is_irreversible(before, decision, self.cluster.created_jobsets):
            decision = self._decide(job, self.cluster, now, rejected)
        return decision

    def _decide(self, job: Object, source: Source, now: datetime, rejected: Rejected | None) -> Decision:
        """Return the decision for a job.

        If the decision needs additional data, read the data and decide again. The additional data are
        Services, the time of the last log line, and the Events in the namespace.
        """
        kai = self.cluster.kai
        snapshot = replace(self._snapshot(source, job), rejected=rejected)
        decision = desired.desired(job, snapshot, now, kai=kai)
        if _needs_etcd(decision) and self.cluster.one(SERVICES, etcd.NAMESPACE, etcd.NAME) is None:
            decision = desired.desired(job, replace(snapshot, no_etcd=True), now, kai=kai)
        if self._has_foreign_service(job, decision):
            decision = desired.desired(job, replace(snapshot, foreign_service=True), now, kai=kai)
        if decision.status.phase == "Running":
            pods = [pod for pod in snapshot.pods if (pod.get("status") or {}).get("phase") == "Running"]
            silent = self.silence.since(job["metadata"]["uid"], pods, now)
            decision = desired.desired(job, replace(snapshot, silent=silent), now, kai=kai)
        if decision.unexplained:
            warnings = self.warnings.of(job["metadata"]["namespace"], now, needed(snapshot.pods))
            decision = desired.desired(job, replace(snapshot, warnings=warnings), now, kai=kai)
        return decision

    def _has_foreign_service(self, job: Object, decision: Decision) -> bool:
        """Return whether a rank could not reach node 0 by its name, and the JobSet has no Service of its own.

        JobSet uses a Service that already exists, even if its selector does not match the job's pods.
        """
        metadata = job["metadata"]
        unresolved = f"expected {names.host(metadata['name'], 0)}:" in (decision.status.message or "")
        if not unresolved or (job.get("status") or {}).get("phase") in FINISHED:
            return False
        service = self.cluster.one(SERVICES, metadata["namespace"], metadata["name"])
        owners = service["metadata"].get("ownerReferences") or [] if service is not None else []
        return service is not None and not any(owner["kind"] == "JobSet" for owner in owners)

    def _snapshot(self, source: Source, job: Object) -> Snapshot:
        """Read the objects of a job. Its queue and the capacity are always read from the caches."""
        waits_in = queue_of(self.caches, job)
        return replace(
            job_snapshot(source, job, kai=self.cluster.kai),
            capacity=self.caches.capacity(),
            waits_in=waits_in,
        )

    def _queue(self, key: Key) -> float | None:
        queue = self.caches.one(QUEUES, key.namespace, key.name)
        if queue is None:
            self.recorder.forget(names.QUEUE_KIND, key.namespace, key.name)
            self._rejected_at.pop(key, None)
            return None
        kai, now = self.cluster.kai, self.now()
        snapshot = queue_snapshot(self.caches, self.cluster.kube, queue, kai=kai)
        changed = queues.template_condition(queue) is None
        if queues.needs_check(queue) and (changed or not self._too_early(key, now)):
            snapshot = replace(snapshot, template=self._check_template(queue))
            if snapshot.template:
                self._rejected_at[key] = now
        decision = queues.desired(queue, snapshot, now, self.cluster_queue, kai=kai)
        if not self.cluster.write_status(queue, decision.status, acting=bool(decision.actions)):
            return REQUEUE_SECONDS
        try:
            self._act(key, queue, decision.actions)
        except (Rejected, ForbiddenError) as error:
            if isinstance(error, Rejected):
                snapshot = replace(snapshot, rejected=error)
            elif ending(queue) and not kai:
                snapshot = replace(snapshot, kai_forbidden=True)
            else:
                raise
            queue = self.caches.one(QUEUES, key.namespace, key.name)
            if queue is None:
                return None
            decision = queues.desired(queue, snapshot, now, self.cluster_queue, kai=kai)
            if not self.cluster.write_status(queue, decision.status, acting=False):
                return REQUEUE_SECONDS
        self.recorder.record(queue, events.of_queue(decision.status), now)
        if decision.actions:
            return REQUEUE_SOON_SECONDS
        return None if true(decision.status.conditions, "Ready") else RECHECK_SECONDS

    def _check_template(self, queue: Object) -> str | None:
        """Return why the API server would reject the pods of a queue's jobs.

        Returns "" if it would accept them, and None if the queue's spec is invalid.
        """
        try:
            spec = QueueSpec.model_validate(queue["spec"])
        except ValidationError:
            return None
        try:
            pod = dry_run_pods.of_queue(queue, spec, kai=self.cluster.kai)
            for field, name in dry_run_pods.storage_classes(spec):
                if self.cluster.kube.get("storage.k8s.io/v1", "StorageClass", name) is None:
                    return f"StorageClass {name} of {field} does not exist: create it, or choose another one"
            self._check_pod(pod)
            check_pod(pod, spec)
        except Refused as refused:
            return str(refused)
        except Rejected as rejected:
            return f"the API server refuses its pods: {rejected.sentence}; {MEND}"
        return ""

    def _check_pod(self, pod: Object) -> None:
        """Let the API server check a queue's pod.

        Raises Rejected, unless the reason is an exhausted quota. Quota is freed when pods end, and until
        then, each job reports the exhausted quota.
        """
        try:
            self.cluster.check(pod)
        except Rejected as rejected:
            if not rejected.by_quota:
                raise

    def _failed(self, key: Key, error: Exception) -> None:
        """Report an error in a condition of a job or queue.

        The caller raises the error.
        """
        kind = JOBS if key.kind == "job" else QUEUES
        current = self.caches.one(kind, key.namespace, key.name)
        if current is None:
            return
        request = "".join(f"; {note}" for note in getattr(error, "__notes__", []))  # from executor.py
        message = f"the controller could not process this object and will retry: {short(error)}{request}"
        status = {**(current.get("status") or {})}
        condition = Condition(type="Reconciled", status="False", reason=type(error).__name__, message=message)
        try:
            old = [Condition.model_validate(each) for each in status.get("conditions") or []]
            before = condition_of(old, "Reconciled")
            if before is not None and (before.status, before.reason) == ("False", condition.reason):
                return  # Writing a message that changes each time would trigger endless reconciles.
            status["conditions"] = [
                each.model_dump(by_alias=True, exclude_none=True)
                for each in with_condition(old, condition, self.now())
            ]
            if key.kind == "job" and status.get("phase") not in FINISHED:
                status = {"phase": "Pending", **status, "message": message}
            if self.cluster.write_status(current, status, acting=False):
                self.recorder.record(current, [events.of_error(condition, self.now())], self.now())
        except Exception as further:
            log.warning("cannot write the status: %s", short(further), extra=about(*key))

    def _act(self, key: Key, current: Object, actions: list[Action]) -> None:
        for action in actions:
            log.info("%s", _named(action), extra=_log_fields(key, current))
            self.cluster.do(current, action)

    def _note(self, job: Object, before: JobStatus, status: JobStatus) -> None:
        if not self.cluster.kai:
            self.metrics.admitted(job, before, status)
        if before.phase != status.phase:
            key = _key_of(job)
            change = f"{before.phase} → {status.phase} ({status.message or ''})"
            log.info("%s", change, extra=_log_fields(key, job))


def _key_of(job: Object) -> Key:
    return Key("job", job["metadata"]["namespace"], job["metadata"]["name"])


def _log_fields(key: Key, current: Object) -> dict[str, object]:
    return about(key.kind, key.namespace, key.name, current["metadata"]["uid"])


def _named(action: object) -> str:
    document = getattr(action, "document", None)
    if document is not None:
        verb = "check" if isinstance(action, Check) else "create"
        return f"{verb} {document['kind']} {document['metadata']['name']}"
    return (
        f"{type(action).__name__.lower()} {getattr(action, 'kind', '')} {getattr(action, 'name', '')}".strip()
    )
