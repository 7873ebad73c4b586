"""Run the probes' attempts in a few threads. More threads start only if peers do not respond.

With one thread per peer, each of 64 pods would have 63 threads. On a busy node, they would all wait for a CPU
at the same time, until their timeouts expire. With few threads, a timeout starts only when its attempt runs.
"""

from __future__ import annotations

import heapq
import itertools
import sys
import threading
import time
from collections.abc import Callable

FIRST = 2
"""The number of threads with which a pool starts."""
STUCK = 0.5
"""The number of threads doubles if no running attempt ends within this many seconds while other attempts are
due."""


class Pool:
    """A pool of threads that run attempts when they are due, until `stop` is set.

    `delay_since` returns how many seconds this process was delayed since a monotonic time. Such delays do not
    lead to more threads, which would not help a process that does not get a CPU.
    """

    def __init__(self, stop: threading.Event, delay_since: Callable[[float], float]) -> None:
        self._stop, self._delay_since = stop, delay_since
        self._changed = threading.Condition()
        self._queue: list[tuple[float, int, Callable[[], float | None]]] = []
        self._numbers = itertools.count()
        self._threads = self._idle = 0
        self._last_end = time.monotonic()
        """The last time when an attempt ended in less than STUCK seconds (without this process's delays), or
        when the number of threads doubled."""
        self._watched = False

    def add(self, attempt: Callable[[], float | None]) -> None:
        """Run `attempt` when a thread is free. If it returns a monotonic time, run it again at that time."""
        with self._changed:
            self._push(time.monotonic(), attempt)
            if self._threads < FIRST:
                self._grow(1)
            if not self._watched:
                self._watched = True
                threading.Thread(target=self._watch, daemon=True).start()

    def close(self) -> None:
        """Let the threads end after their current attempts. `stop` must be set."""
        with self._changed:
            self._changed.notify_all()

    def _push(self, due_at: float, attempt: Callable[[], float | None]) -> None:
        heapq.heappush(self._queue, (due_at, next(self._numbers), attempt))
        if self._idle:
            self._changed.notify()

    def _grow(self, number: int) -> None:
        for _ in range(number):
            self._threads += 1
            threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._changed:
                attempt = self._next()
            if attempt is None:
                return
            next_due, start = None, time.monotonic()
            try:
                next_due = attempt()
            except Exception:  # An error ends this probe, but not the thread.
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
            with self._changed:
                now = time.monotonic()
                duration = now - start
                if duration < STUCK or duration - self._delay_since(start) < STUCK:
                    self._last_end = now
                if next_due is not None:
                    self._push(next_due, attempt)

    def _next(self) -> Callable[[], float | None] | None:
        """Wait for the next attempt that is due. Return None when `stop` is set."""
        while not self._stop.is_set():
            remaining = self._queue[0][0] - time.monotonic() if self._queue else None
            if remaining is not None and remaining <= 0:
                return heapq.heappop(self._queue)[2]
            self._idle += 1
            self._changed.wait(remaining)
            self._idle -= 1
        return None

    def _watch(self) -> None:
        """Double the number of threads if attempts are due but no thread becomes free for STUCK seconds."""
        while not self._stop.wait(STUCK):
            with self._changed:
                now = time.monotonic()
                is_overdue = bool(self._queue) and now - self._queue[0][0] >= STUCK and not self._idle
                stuck_seconds = now - self._last_end - self._delay_since(self._last_end)
                if is_overdue and stuck_seconds >= STUCK:
                    self._grow(min(self._threads, len(self._queue)))
                    self._last_end = now
