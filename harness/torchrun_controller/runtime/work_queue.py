"""A work queue that schedules an object's reconcile after an event, at a requested time, or after a failure.

An object is never reconciled by two threads at the same time, and events for a queued object are merged.
Events that only report progress are delayed by a second, or longer if many objects make progress. Without the
delay, a burst of jobs would overload the API server, because each job reconcile writes the job's status.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from harness.torchrun_controller.runtime.logging_setup import about, short
from harness.torchrun_controller.runtime.reconcile import Key

log = logging.getLogger(__name__)
Reconcile = Callable[[Key], float | None]
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
PROGRESS_SECONDS = 1.0
PROGRESS_RATE = 20
"""The maximum number of reconciles per second that progress events cause. With 100 active objects, each
object is reconciled every 5 s.
"""
ACTIVE_SECONDS = 10.0
"""An object counts as active for this number of seconds after its last progress event."""


class WorkQueue:
    """A work queue that calls `reconcile` with the key of each object to reconcile, in at most `workers`
    threads."""

    def __init__(self, reconcile: Reconcile, workers: int = 10) -> None:
        self.reconcile, self.workers = reconcile, workers
        self._queue: asyncio.Queue[Key] = asyncio.Queue()
        self._queued: set[Key] = set()
        self._processing: set[Key] = set()
        self._dirty: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._active: OrderedDict[Key, float] = OrderedDict()
        """The time of the last progress event of each active object, oldest first."""

    def enqueue(self, key: Key) -> None:
        """Enqueue an object for an immediate reconcile."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._processing:
            self._dirty.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._queue.put_nowait(key)

    def enqueue_progress(self, key: Key) -> None:
        """Enqueue an object after a delay that keeps the rate of reconciles for progress events below
        PROGRESS_RATE."""
        now = asyncio.get_running_loop().time()
        self._active[key] = now
        self._active.move_to_end(key)
        while now - next(iter(self._active.values())) > ACTIVE_SECONDS:
            self._active.popitem(last=False)
        if key not in self._queued:
            self.enqueue_after(key, max(PROGRESS_SECONDS, len(self._active) / PROGRESS_RATE))

    async def run(self) -> None:
        """Process the work queue until this task is cancelled."""
        self._threads = ThreadPoolExecutor(self.workers, "reconcile")
        async with asyncio.TaskGroup() as group:
            for _ in range(self.workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            self._queued.discard(key)
            self._processing.add(key)
            try:
                after = await asyncio.get_running_loop().run_in_executor(self._threads, self.reconcile, key)
                self._failures.pop(key, None)
            except Exception as error:
                failed = self._failures[key] = self._failures.get(key, 0) + 1
                after = min(FIRST_PAUSE * 2**failed, LONGEST_PAUSE)
                own = not isinstance(error, ApiException | HTTPError)
                log.warning("%s; retrying in %.1f s", short(error), after, extra=about(*key), exc_info=own)
            finally:
                self._processing.discard(key)
            if key in self._dirty:
                self._dirty.discard(key)
                self.enqueue(key)
            elif after is not None:
                self.enqueue_after(key, after)

    def enqueue_after(self, key: Key, seconds: float) -> None:
        """Enqueue an object after `seconds`, unless it is already scheduled for an earlier time."""
        loop = asyncio.get_running_loop()
        before = self._timers.get(key)
        if before is not None:
            if before.when() <= loop.time() + seconds:
                return
            before.cancel()
        self._timers[key] = loop.call_later(seconds, self.enqueue, key)
