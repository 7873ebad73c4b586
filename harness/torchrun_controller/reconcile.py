"""One look at one object: read, decide, write the status, act, tell.

It reads the copies that watches keep, which may be behind. What follows from that is bounded: a status is
written only over the job's newest version, an object is made only where there is none of its name, and what
cannot be taken back is decided a second time, by what the cluster has at this moment (`grave`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from harness.core.kubernetes import Object
from harness.torchrun_controller import desired, events, names, queues
from harness.torchrun_controller.caches import Caches
from harness.torchrun_controller.cluster import Cluster
from harness.torchrun_controller.conditions import true
from harness.torchrun_controller.kinds import JOBS, QUEUES
from harness.torchrun_controller.logs import about
from harness.torchrun_controller.metrics import Metrics
from harness.torchrun_controller.models import FINISHED, JobStatus
from harness.torchrun_controller.observed import Action, Create, Decision, Seen
from harness.torchrun_controller.recorder import Recorder
from harness.torchrun_controller.seeing import Source, queue_of, see, see_queue

log = logging.getLogger(__name__)
Clock = Callable[[], datetime]
SOON_SECONDS = 1.0
"""When to look again after an action, should its event not come before."""
AGAIN_SECONDS = 0.2
"""When to look again at what was refused because it is old. A watch that is behind needs a moment."""


class Key(NamedTuple):
    """What is to be looked at."""

    kind: Literal["job", "queue"]
    namespace: str
    name: str


def clock() -> datetime:
    """Return the time in whole seconds: a condition's time has no parts of them."""
    return datetime.now(UTC).replace(microsecond=0)


def grave(before: JobStatus, decision: Decision, made: set[str]) -> bool:
    """Return whether a decision must not rest on copies that may be behind: an end, a deletion, another
    JobSet than the job had. Not a JobSet that this process made itself: it is known as it was made. And not
    the success of all pods that there are: newer ones could say nothing else.
    """
    status = decision.status
    if any(not isinstance(action, Create) for action in decision.actions):
        return True
    if status.phase in FINISHED and before.phase not in FINISHED:
        return status.phase != "Succeeded" or status.workers.succeeded != status.num_nodes
    if true(status.conditions, "CleanedUp") and not true(before.conditions, "CleanedUp"):
        return True
    return status.job_id != before.job_id and status.job_id not in made


class Reconciler:
    """Carries out decisions. Between two looks it remembers what watches told, what it wrote itself, and
    which Events it has posted. All of that may be lost.
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

    def look(self, key: Key) -> float | None:
        """Return after how many seconds to look again without an event, or None. What fails raises."""
        with self.metrics.look(key.kind):
            return self._job(key) if key.kind == "job" else self._queue(key)

    def _job(self, key: Key) -> float | None:
        job = self.caches.one(JOBS, key.namespace, key.name)
        if job is None:
            self.recorder.forget(names.JOB_KIND, key.namespace, key.name)
            return None
        now = self.now()
        before = JobStatus.model_validate(job.get("status") or {})
        decision = self._decision(job, before, now)
        if not self.cluster.write_status(job, decision.status, acting=bool(decision.actions)):
            return AGAIN_SECONDS
        self.cluster.made.discard(decision.status.job_id or "")
        self._note(job, before, decision.status)
        self._act(key, job, decision.actions)
        self.recorder.record(job, events.of_job(before, decision.status), now)
        if decision.actions:
            return SOON_SECONDS
        return None if decision.wake is None else max(0.0, (decision.wake - now).total_seconds())

    def _decision(self, job: Object, before: JobStatus, now: datetime) -> Decision:
        kai = self.cluster.kai
        decision = desired.desired(job, self._seen(self.caches, job), now, kai=kai)
        if grave(before, decision, self.cluster.made):
            decision = desired.desired(job, self._seen(self.cluster, job), now, kai=kai)
        return decision

    def _seen(self, source: Source, job: Object) -> Seen:
        """Read what belongs to a job, and the capacity, which is never asked for."""
        waits_in = queue_of(self.caches, job)
        return replace(
            see(source, job, kai=self.cluster.kai), capacity=self.caches.capacity(), waits_in=waits_in
        )

    def _queue(self, key: Key) -> float | None:
        queue = self.caches.one(QUEUES, key.namespace, key.name)
        if queue is None:
            self.recorder.forget(names.QUEUE_KIND, key.namespace, key.name)
            return None
        seen = see_queue(self.caches, self.cluster.kube, queue, kai=self.cluster.kai)
        now = self.now()
        decision = queues.desired(queue, seen, now, self.cluster_queue, kai=self.cluster.kai)
        if not self.cluster.write_status(queue, decision.status, acting=bool(decision.actions)):
            return AGAIN_SECONDS
        self._act(key, queue, decision.actions)
        self.recorder.record(queue, events.of_queue(decision.status), now)
        return SOON_SECONDS if decision.actions else None

    def _act(self, key: Key, found: Object, actions: list[Action]) -> None:
        for action in actions:
            log.info("%s", _named(action), extra=_whose(key, found))
            self.cluster.do(found, action)

    def _note(self, job: Object, before: JobStatus, status: JobStatus) -> None:
        if not self.cluster.kai:
            self.metrics.admitted(job, before, status)
        if before.phase != status.phase:
            key = Key("job", job["metadata"]["namespace"], job["metadata"]["name"])
            change = f"{before.phase} → {status.phase} ({status.message or ''})"
            log.info("%s", change, extra=_whose(key, job))


def _whose(key: Key, found: Object) -> dict[str, object]:
    return about(key.kind, key.namespace, key.name, found["metadata"]["uid"])


def _named(action: object) -> str:
    document = getattr(action, "document", None)
    if document is not None:
        return f"create {document['kind']} {document['metadata']['name']}"
    return (
        f"{type(action).__name__.lower()} {getattr(action, 'kind', '')} {getattr(action, 'name', '')}".strip()
    )
