"""Send one rank's points to one tracker, beside the training.

A thread of its own talks to the tracker, so that a step never waits for it. A point is kept here until the
tracker has acknowledged it, whatever happens in between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

PAUSE, AFTER_TROUBLE = 0.1, 1.0
"""Seconds between two looks at what is acknowledged, and until the next try when the tracker failed."""


@dataclass(frozen=True)
class Point:
    """What was logged at once: values by the names of their metrics. `number` counts the points of a rank."""

    number: int
    step: int
    time_ms: int
    values: dict[str, float]


class Client(Protocol):
    """How one tracker is talked to, by one thread."""

    name: str

    def connect(self) -> None:
        """Open the run, which all ranks and all restarts share. It is called again where it raised."""

    def send(self, points: Sequence[Point]) -> tuple[Sequence[Point], str]:
        """Send those that were not sent yet. Return those that are not acknowledged, and what is wrong."""

    def close(self, ok: bool) -> None:
        """Let go of the run. `ok`: the training is over, and nothing is missing."""


class Sender:
    """Keeps points until its client has had them acknowledged."""

    def __init__(
        self, client: Client, points: Sequence[Point], say: Callable[[str], None], seconds: float
    ) -> None:
        """Begin to send `points`. `seconds`: how long the training may wait for a tracker that is down."""
        self.client, self.seconds = client, seconds
        self._say, self._points = say, list(points)
        self._changed = threading.Condition()
        self._left, self._acknowledged, self._at_last_wait = seconds, 0, 0
        self._trouble, self._since, self._ended = "", 0.0, False
        self._thread = threading.Thread(target=self._run, name=client.name, daemon=True)
        self._thread.start()

    def put(self, point: Point) -> None:
        """Have a point sent. Returns at once."""
        with self._changed:
            self._points.append(point)
            self._changed.notify_all()

    def unsent(self) -> list[Point]:
        """Return the points that are not acknowledged, the oldest first."""
        with self._changed:
            return list(self._points)

    def wait(self, again: bool = False) -> bool:
        """Wait until all is acknowledged. Return whether it is.

        There is one limit for all waits in a row: after `seconds` in vain the next ones do not wait, until
        the tracker has acknowledged something. `again`: they may take `seconds` once more.
        """
        with self._changed:
            if again or self._acknowledged > self._at_last_wait:
                self._left = self.seconds
            ends = time.monotonic() + self._left
            done = self._changed.wait_for(lambda: not self._points, self._left)
            self._left = self.seconds if done else max(0.0, ends - time.monotonic())
            self._at_last_wait = self._acknowledged
            return done

    def trouble(self) -> str:
        """Return why the tracker takes nothing, or ""."""
        with self._changed:
            return self._trouble

    def close(self, ok: bool) -> None:
        """End. The run is over where `ok`, and where no point is left."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        # It may be in the middle of a request, whose limits are the client's. The process can end meanwhile.
        self._thread.join(self.seconds if ok else 1.0)
        if not self._thread.is_alive():
            self.client.close(ok and not self._points)

    # -- the thread --------------------------------------------------------------------------------------
    def _run(self) -> None:
        connected = False
        while True:
            with self._changed:
                if connected:
                    self._changed.wait_for(lambda: self._ended or self._points)
                if self._ended:
                    return
                points = tuple(self._points)
            try:
                if not connected:
                    self.client.connect()
                    connected = True
                left, trouble = self.client.send(points)
            except Exception as error:  # whatever it is, the training goes on
                left, trouble = points, f"{type(error).__name__}: {error}"
            self._tell(trouble)
            with self._changed:
                self._points[: len(points)] = left
                self._acknowledged += len(points) - len(left)
                self._changed.notify_all()
                if left or trouble:
                    pause = AFTER_TROUBLE if trouble else PAUSE
                    self._changed.wait_for(lambda: self._ended, pause)

    def _tell(self, trouble: str) -> None:
        """Say once that it began, and once that it is over."""
        name, before = self.client.name, self._trouble
        with self._changed:
            self._trouble = trouble
        if trouble and not before:
            self._since = time.monotonic()
            self._say(
                f"{name} takes no points ({' '.join(trouble.split())[:300]}): they are kept and tried again"
            )
        if before and not trouble:
            self._say(f"{name} takes points again after {time.monotonic() - self._since:.0f} s")
