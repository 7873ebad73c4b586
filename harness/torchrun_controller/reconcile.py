"""One look at one object: read, decide, write the status, act, tell."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from harness.core.kubernetes import Object
from harness.torchrun_controller import desired, events, names, queues
from harness.torchrun_controller.cluster import Cluster
from harness.torchrun_controller.logs import about
from harness.torchrun_controller.metrics import Metrics
from harness.torchrun_controller.models import JobStatus
from harness.torchrun_controller.recorder import Recorder

log = logging.getLogger(__name__)
Clock = Callable[[], datetime]


class Key(NamedTuple):
    """What is to be looked at."""

    kind: Literal["job", "queue"]
    namespace: str
    name: str


def clock() -> datetime:
    """Return the time in whole seconds: a condition's time has no parts of them."""
    return datetime.now(UTC).replace(microsecond=0)


class Reconciler:
    """Carries out decisions. It remembers nothing between two looks, but for which Events it has posted."""

    def __init__(
        self, cluster: Cluster, cluster_queue: str, now: Clock = clock, metrics: Metrics | None = None
    ) -> None:
        self.cluster, self.cluster_queue, self.now = cluster, cluster_queue, now
        self.metrics = metrics or Metrics()
        self.recorder = Recorder(cluster.kube, self.metrics)

    def look(self, key: Key) -> float | None:
        """Return after how many seconds to look again without an event, or None. What fails raises."""
        with self.metrics.look(key.kind):
            return self._job(key) if key.kind == "job" else self._queue(key)

    def _job(self, key: Key) -> float | None:
        job = self.cluster.job(key.namespace, key.name)
        if job is None:
            self.recorder.forget(names.JOB_KIND, key.namespace, key.name)
            return None
        now = self.now()
        decision = desired.desired(job, self.cluster.see(job), now, kai=self.cluster.kai)
        if not self.cluster.write_status(job, decision.status, acting=bool(decision.actions)):
            return 0
        before = JobStatus.model_validate(job.get("status") or {})
        self._note(job, before, decision.status)
        for action in decision.actions:
            log.info("%s", _named(action), extra=_whose(key, job))
            self.cluster.do(job, action)
        self.recorder.record(job, events.of_job(before, decision.status), now)
        return None if decision.wake is None else max(0.0, (decision.wake - now).total_seconds())

    def _queue(self, key: Key) -> float | None:
        queue = self.cluster.queue(key.namespace, key.name)
        if queue is None:
            self.recorder.forget(names.QUEUE_KIND, key.namespace, key.name)
            return None
        seen = self.cluster.see_queue(queue)
        now = self.now()
        decision = queues.desired(queue, seen, now, self.cluster_queue, kai=self.cluster.kai)
        if not self.cluster.write_status(queue, decision.status, acting=bool(decision.actions)):
            return 0
        for action in decision.actions:
            log.info("%s", _named(action), extra=_whose(key, queue))
            self.cluster.do(queue, action)
        self.recorder.record(queue, events.of_queue(decision.status), now)
        return None

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
