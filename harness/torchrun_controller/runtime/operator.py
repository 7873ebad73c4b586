"""Run the controller: enqueue the jobs and queues that each watch event affects (work_queue.py)."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from harness.core.kubernetes import Object
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.models import FINISHED
from harness.torchrun_controller.decide.decisions import ending
from harness.torchrun_controller.decide.queue import needs_check
from harness.torchrun_controller.runtime.kinds import (
    CLAIMS,
    JOBS,
    JOBSETS,
    LOCAL_QUEUES,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    WORKLOADS,
    Kind,
)
from harness.torchrun_controller.runtime.object_cache import Change
from harness.torchrun_controller.runtime.reconcile import Key, Reconciler
from harness.torchrun_controller.runtime.work_queue import WorkQueue

log = logging.getLogger(__name__)
ROUND_SECONDS = 30
"""The interval, in seconds, at which every unfinished job is reconciled even without an event, in case an
event was lost."""
MOVE_SECONDS = 5


class Operator:
    """Watches jobs, queues and the objects created for them, and reconciles jobs and queues."""

    def __init__(
        self,
        reconciler: Reconciler,
        namespace: str | None = None,
        moves: Callable[[], None] = lambda: None,
    ) -> None:
        """Create an operator. The operator calls `moves` every MOVE_SECONDS as long as its event loop is
        running."""
        self.reconciler, self.namespace, self.moves = reconciler, namespace, moves
        self.caches = reconciler.caches
        self.work_queue = WorkQueue(reconciler.reconcile)

    async def run(self, stop: threading.Event, ready: threading.Event | None = None) -> None:
        """Run until `stop` is set. Once all caches are synced, set `ready` and start reconciling."""
        loop = asyncio.get_running_loop()

        def on_change(kind: Kind, change: Change) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._on_change, kind, change)

        move = asyncio.create_task(self._move())
        kube = self.reconciler.cluster.kube
        if await asyncio.to_thread(self.caches.follow, kube, self.namespace, on_change, stop):
            if ready is not None:
                ready.set()
            await self._until(stop)
        move.cancel()

    async def _until(self, stop: threading.Event) -> None:
        own = [asyncio.create_task(each) for each in (self.work_queue.run(), self._rounds())]
        stopped = asyncio.create_task(asyncio.to_thread(stop.wait))
        try:
            finished, _ = await asyncio.wait([stopped, *own], return_when=asyncio.FIRST_COMPLETED)
            for task in finished:
                task.result()  # This raises the error of a task that ended unexpectedly.
        finally:
            stop.set()
            for task in own:
                task.cancel()

    async def _move(self) -> None:
        while True:
            self.moves()
            await asyncio.sleep(MOVE_SECONDS)

    async def _rounds(self) -> None:
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            unfinished = [job["metadata"] for job in self.caches.all(JOBS) if _is_unfinished(job)]
            for number, job in enumerate(unfinished):
                key = Key("job", job["namespace"], job["name"])
                self.work_queue.enqueue_after(key, ROUND_SECONDS * number / len(unfinished))

    # -- enqueue the objects that an event affects -----------------------------------------------------
    def _on_change(self, kind: Kind, change: Change) -> None:
        if kind != JOBS and _is_unchanged(change):
            return
        item = change.after or change.before
        assert item is not None
        metadata = item["metadata"]
        namespace, name = metadata.get("namespace") or "", metadata["name"]
        if kind in (JOBS, JOBSETS):
            is_urgent = _spec_changed(change) if kind == JOBS else _has_ended(change)
            (self.work_queue.enqueue if is_urgent else self.work_queue.enqueue_progress)(
                Key("job", namespace, name)
            )
        elif kind in (PODS, CLAIMS):
            # A failed pod is urgent: when a JobSet restarts, it deletes its failed pods, and with them the
            # reason for the failure.
            failed = (item.get("status") or {}).get("phase") == "Failed"
            key = Key("job", namespace, metadata["labels"][names.JOB_LABEL])
            (self.work_queue.enqueue if failed else self.work_queue.enqueue_progress)(key)
        elif kind == WORKLOADS:
            for owner in metadata.get("ownerReferences") or []:
                if owner["kind"] == "JobSet":
                    self.work_queue.enqueue_progress(Key("job", namespace, owner["name"]))
        elif kind == QUEUES:
            # A write by this process does not enqueue the queue. Otherwise, a reconcile that writes and then
            # fails would be repeated at once.
            if not change.own:
                self.work_queue.enqueue(Key("queue", namespace, name))
            self._enqueue_jobs(namespace, _is_pending)
        elif kind == LOCAL_QUEUES:
            self._enqueue_queues(namespace, name)
        elif kind == PRIORITY_CLASSES:
            self._enqueue_jobs(None, _is_pending)
            for queue in self.caches.all(QUEUES):
                if needs_check(queue):
                    self.work_queue.enqueue(
                        Key("queue", queue["metadata"]["namespace"], queue["metadata"]["name"])
                    )

    def _enqueue_jobs(self, namespace: str | None, is_affected: Callable[[str | None], bool]) -> None:
        for job in self.caches.all(JOBS, namespace):
            if is_affected((job.get("status") or {}).get("phase")):
                metadata = job["metadata"]
                self.work_queue.enqueue(Key("job", metadata["namespace"], metadata["name"]))

    def _enqueue_queues(self, namespace: str, local_queue: str) -> None:
        """Enqueue the TorchrunQueues that have the same name as a LocalQueue, or that name the LocalQueue in
        spec.localQueue."""
        for queue in self.caches.all(QUEUES, namespace):
            name = queue["metadata"]["name"]
            if local_queue in (name, queue["spec"].get("localQueue")):
                self.work_queue.enqueue(Key("queue", namespace, name))


def _spec_changed(change: Change) -> bool:
    """Return whether a change to a job affects more than its status.

    Only the controller writes the status.
    """
    before, after = change.before, change.after
    if before is None or after is None:
        return True
    return {**_content(before), "status": None} != {**_content(after), "status": None}


def _has_ended(change: Change) -> bool:
    """Return whether a JobSet has ended or is being deleted."""
    after = change.after
    return after is None or ending(after) or bool((after.get("status") or {}).get("conditions"))


def _is_unfinished(job: Object) -> bool:
    return (job.get("status") or {}).get("phase") not in FINISHED


def _is_pending(phase: str | None) -> bool:
    return phase in (None, "Pending")


def _is_unchanged(change: Change) -> bool:
    """Return whether all cached fields (see kinds.py) are unchanged."""
    if change.before is None or change.after is None:
        return False
    return _content(change.before) == _content(change.after)


def _content(item: Object) -> Object:
    return {**item, "metadata": {**item["metadata"], "resourceVersion": None}}
