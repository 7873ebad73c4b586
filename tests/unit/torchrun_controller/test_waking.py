"""Which object is looked at when."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from torchrun_api import Api, Watching
from torchrun_objects import job, jobset, pod, queue

from harness.torchrun_controller.runtime import work_queue
from harness.torchrun_controller.runtime.kinds import JOBS, JOBSETS, PODS, QUEUES, Kind
from harness.torchrun_controller.runtime.object_cache import Change
from harness.torchrun_controller.runtime.operator import Operator
from harness.torchrun_controller.runtime.reconcile import Key
from harness.torchrun_controller.runtime.work_queue import WorkQueue

Object = dict[str, Any]
ONE, TWO = Key("job", "team", "one"), Key("job", "team", "two")
LIMIT = 20.0


async def during(found: WorkQueue, until: threading.Event) -> None:
    """Run it until the event is set. Raises TimeoutError after LIMIT seconds."""
    task = asyncio.create_task(found.run())
    assert await asyncio.to_thread(until.wait, LIMIT)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def in_first_look(
    found: WorkQueue, first: threading.Event, until: threading.Event
) -> asyncio.Task[None]:
    """Wake ONE and run until `first` is set. Return the task, which runs on until the other event is set."""
    found.enqueue(ONE)
    task = asyncio.create_task(during(found, until))
    assert await asyncio.to_thread(first.wait, LIMIT)
    return task


def test_event_that_comes_during_a_look_is_not_lost() -> None:
    """Contract: the same object is looked at once at a time, and again for what came meanwhile."""
    reconciled: list[Key] = []
    first, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def reconcile(key: Key) -> None:
        reconciled.append(key)
        if len(reconciled) == 1:
            first.set()
            assert go_on.wait(LIMIT)
        else:
            done.set()

    async def run() -> None:
        found = WorkQueue(reconcile)
        task = await in_first_look(found, first, done)
        for _ in range(3):
            found.enqueue(ONE)
        assert reconciled == [ONE]  # still the first
        go_on.set()
        await task

    asyncio.run(run())
    assert reconciled == [ONE, ONE]


def test_progress_waits_and_counts_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: events that tell of progress lead to one look, later where many objects make progress. What
    else happens to an object does not wait for that.
    """
    monkeypatch.setattr(work_queue, "PROGRESS_SECONDS", 0.1)
    monkeypatch.setattr(work_queue, "PROGRESS_RATE", 5)
    many = [Key("job", "team", str(number)) for number in range(5)]
    reconciled: list[tuple[Key, float]] = []
    done = threading.Event()

    def reconcile(key: Key) -> None:
        reconciled.append((key, time.monotonic()))
        if len(reconciled) == len(many) + 1:
            done.set()

    async def run() -> float:
        found = WorkQueue(reconcile)
        began = time.monotonic()
        for _ in range(3):
            for key in (TWO, *many):
                found.enqueue_progress(key)
        found.enqueue(TWO)
        await during(found, done)
        return began

    began = asyncio.run(run())
    assert sorted(key for key, _ in reconciled) == sorted([TWO, *many])
    assert reconciled[-1][1] - began >= 1.2


def test_progress_during_a_look_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queue, "PROGRESS_SECONDS", 0.1)
    reconciled, first, go_on, done = [0], threading.Event(), threading.Event(), threading.Event()

    def reconcile(_: Key) -> None:
        reconciled[0] += 1
        if reconciled[0] == 1:
            first.set()
            assert go_on.wait(LIMIT)
        else:
            done.set()

    async def run() -> None:
        found = WorkQueue(reconcile)
        task = await in_first_look(found, first, done)
        found.enqueue_progress(ONE)
        go_on.set()
        await task

    asyncio.run(run())
    assert reconciled == [2]


def test_failure_is_repeated_and_holds_up_nobody() -> None:
    """Contract: what fails is looked at again, later each time; other objects do not wait for it."""
    failures, done, other = [0], threading.Event(), threading.Event()

    def reconcile(key: Key) -> None:
        if key == TWO:
            other.set()
            return
        failures[0] += 1
        if failures[0] < 3:
            raise RuntimeError("the API server does not answer")
        done.set()

    async def run() -> None:
        found = WorkQueue(reconcile, workers=1)
        found.enqueue(ONE)
        found.enqueue(TWO)
        await during(found, done)

    asyncio.run(run())
    assert other.is_set()
    assert failures == [3]


def test_time_that_comes() -> None:
    """Contract: a look that asks for another one gets it without an event."""
    reconciled, done = [0], threading.Event()

    def reconcile(_: Key) -> float | None:
        reconciled[0] += 1
        if reconciled[0] < 3:
            return 0.01
        done.set()
        return None

    async def run() -> None:
        found = WorkQueue(reconcile)
        found.enqueue(ONE)
        await during(found, done)

    asyncio.run(run())
    assert reconciled == [3]
    assert work_queue.LONGEST_PAUSE >= work_queue.FIRST_PAUSE


class Noted:
    """Stands where the operator wakes objects, and notes how."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Key]] = []

    def enqueue(self, key: Key) -> None:
        self.calls.append(("enqueue", key))

    def enqueue_progress(self, key: Key) -> None:
        self.calls.append(("enqueue_progress", key))


def changed(item: Object, version: int, **parts: Any) -> Object:
    metadata = {**item["metadata"], "namespace": "team", "resourceVersion": str(version)}
    return {**item, "metadata": metadata, **parts}


ENDED = {"conditions": [{"type": "Completed", "status": "True"}]}


@pytest.mark.parametrize(
    ("kind", "before", "after", "how"),
    [
        (JOBS, None, changed(job(), 1), "enqueue"),
        (JOBS, changed(job(), 1), changed(job(cancel=True), 2), "enqueue"),
        (JOBS, changed(job(), 1), changed(job(), 2, status={"phase": "Queued"}), "enqueue_progress"),
        (JOBSETS, None, changed(jobset(suspend=True), 1), "enqueue_progress"),
        (JOBSETS, changed(jobset(suspend=True), 1), changed(jobset(), 2), "enqueue_progress"),
        (JOBSETS, changed(jobset(), 1), changed(jobset(), 2, status=ENDED), "enqueue"),
        (JOBSETS, changed(jobset(), 1), None, "enqueue"),
        (PODS, None, changed(pod(0, "Running"), 1), "enqueue_progress"),
        (PODS, changed(pod(0, "Running"), 1), changed(pod(0, "Failed"), 2), "enqueue"),
    ],
)
def test_what_wakes_at_once(kind: Kind, before: Object | None, after: Object | None, how: str) -> None:
    """Contract: what is asked of a job, its JobSet's end and a failed pod; not its status, nor progress."""
    operator = Operator(Watching(Api(), lambda: datetime.now(UTC)).reconciler)
    operator.work_queue = noted = Noted()  # type: ignore[assignment]
    operator._on_change(kind, Change(before, after))
    assert noted.calls == [(how, Key("job", "team", "demo"))]


def test_job_does_not_miss_check_of_its_queue() -> None:
    """Contract: if the response to a queue's status write is stored before the watch reports it, the waiting
    jobs are reconciled all the same.
    """
    operator = Operator(Watching(Api(), lambda: datetime.now(UTC)).reconciler)
    operator.work_queue = noted = Noted()  # type: ignore[assignment]
    caches = operator.caches
    caches.on_change = operator._on_change
    caches.stores[JOBS].changed(changed(job(), 201, status={"phase": "Pending"}))
    caches.stores[QUEUES].changed(changed(queue(), 202, status={}))
    caches.wrote(changed(queue(), 203, status={"phase": "Ready"}))
    assert ("enqueue", Key("job", "team", "demo")) in noted.calls
    before = list(noted.calls)
    caches.wrote(changed(job(), 204, status={"phase": "Queued"}))
    assert caches.stores[QUEUES].changed(changed(queue(), 203, status={"phase": "Ready"})) is None
    assert noted.calls == before


def test_queue_is_not_reconciled_because_of_its_own_status() -> None:
    """Contract: a failed reconcile writes Reconciled, and the next attempt waits although it wrote that. What
    others change reconciles the queue.
    """
    operator = Operator(Watching(Api(), lambda: datetime.now(UTC)).reconciler)
    operator.work_queue = noted = Noted()  # type: ignore[assignment]
    caches = operator.caches
    caches.on_change = operator._on_change
    caches.stores[QUEUES].changed(changed(queue(), 202, status={}))
    for version, phase in enumerate(("Updating", "Active", "Updating"), 203):
        caches.wrote(changed(queue(), version, status={"phase": phase}))
    assert noted.calls == []
    operator._on_change(QUEUES, Change(None, changed(queue(), 206)))
    assert [kind for _, (kind, *_) in noted.calls] == ["queue"]
