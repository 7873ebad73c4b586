"""One look at one object: read, decide, write the status, act."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from harness.core.kubernetes import Object
from harness.torchrun_controller import desired, queues
from harness.torchrun_controller.cluster import Cluster

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
    """Carries out decisions. It remembers nothing between two looks."""

    def __init__(self, cluster: Cluster, cluster_queue: str, now: Clock = clock) -> None:
        self.cluster, self.cluster_queue, self.now = cluster, cluster_queue, now

    def look(self, key: Key) -> float | None:
        """Return after how many seconds to look again without an event, or None. What fails raises."""
        return self._job(key) if key.kind == "job" else self._queue(key)

    def _job(self, key: Key) -> float | None:
        job = self.cluster.job(key.namespace, key.name)
        if job is None:
            return None
        now = self.now()
        decision = desired.desired(job, self.cluster.see(job), now, kai=self.cluster.kai)
        self._note(key, job, decision.status.phase, decision.status.message)
        if not self.cluster.write_status(job, decision.status, acting=bool(decision.actions)):
            return 0
        for action in decision.actions:
            log.info("%s/%s: %s", key.namespace, key.name, _named(action))
            self.cluster.do(job, action)
        return None if decision.wake is None else max(0.0, (decision.wake - now).total_seconds())

    def _queue(self, key: Key) -> float | None:
        queue = self.cluster.queue(key.namespace, key.name)
        if queue is None:
            return None
        seen = self.cluster.see_queue(queue)
        decision = queues.desired(queue, seen, self.now(), self.cluster_queue, kai=self.cluster.kai)
        if not self.cluster.write_status(queue, decision.status, acting=bool(decision.actions)):
            return 0
        for action in decision.actions:
            log.info("%s/%s: %s", key.namespace, key.name, _named(action))
            self.cluster.do(queue, action)
        return None

    def _note(self, key: Key, job: Object, phase: str | None, message: str | None) -> None:
        before = (job.get("status") or {}).get("phase")
        if before != phase:
            log.info("%s/%s: %s → %s (%s)", key.namespace, key.name, before, phase, message or "")


def _named(action: object) -> str:
    document = getattr(action, "document", None)
    if document is not None:
        return f"create {document['kind']} {document['metadata']['name']}"
    return (
        f"{type(action).__name__.lower()} {getattr(action, 'kind', '')} {getattr(action, 'name', '')}".strip()
    )
