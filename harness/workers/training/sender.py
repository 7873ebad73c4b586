"""Send one rank's points to one tracker while training continues.

A separate thread communicates with the tracker, so that no training step waits for the tracker. The Sender
keeps each point until the tracker has acknowledged it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

PAUSE, AFTER_TROUBLE = 0.1, 1.0
"""PAUSE is the time between two polls for acknowledgements, and AFTER_TROUBLE the time between an error and
the next attempt to send. Both are in seconds."""


@dataclass(frozen=True)
class Point:
    """The values from one `log` call, keyed by metric name. `number` is unique among the rank's points."""

    number: int
    step: int
    time_ms: int
    values: dict[str, float]


class Client(Protocol):
    """A connection to one tracker, used by one thread."""

    name: str

    def connect(self) -> None:
        """Open the run that all ranks and attempts share. After an error, `connect` is called again."""

    def send(self, points: Sequence[Point]) -> tuple[Sequence[Point], str]:
        """Send all unsent points.

        Return the unacknowledged points, and an error message ("" if there was no error).
        """

    def close(self, ok: bool) -> None:
        """Close the run. `ok` means that training has finished and no point is missing."""


class Sender:
    """Sends points to a tracker, and keeps each point until the tracker has acknowledged it."""

    def __init__(
        self, client: Client, points: Sequence[Point], say: Callable[[str], None], seconds: float
    ) -> None:
        """Start sending `points`. `seconds` limits how long the trainer waits if the tracker is down."""
        self.client, self.seconds = client, seconds
        self._say, self._points = say, list(points)
        self._changed = threading.Condition()
        self._remaining, self._acknowledged, self._at_last_wait = seconds, 0, 0
        self._trouble, self._trouble_since, self._ended = "", 0.0, False
        self._thread = threading.Thread(target=self._run, name=client.name, daemon=True)
        self._thread.start()

    def put(self, point: Point) -> None:
        """Queue a point without waiting."""
        with self._changed:
            self._points.append(point)
            self._changed.notify_all()

    def unsent(self) -> list[Point]:
        """Return the unacknowledged points, oldest first."""
        with self._changed:
            return list(self._points)

    def wait(self, again: bool = False) -> bool:
        """Wait until all points are acknowledged. Return whether all of them are.

        `seconds` limits the total time of consecutive waits. Once this time has been used up, further calls
        return immediately until the tracker acknowledges a point. If `again` is true, the limit is reset
        first.
        """
        with self._changed:
            if again or self._acknowledged > self._at_last_wait:
                self._remaining = self.seconds
            deadline = time.monotonic() + self._remaining
            acknowledged = self._changed.wait_for(lambda: not self._points, self._remaining)
            self._remaining = self.seconds if acknowledged else max(0.0, deadline - time.monotonic())
            self._at_last_wait = self._acknowledged
            return acknowledged

    def trouble(self) -> str:
        """Return the error of the last attempt to send, or "" if it was successful."""
        with self._changed:
            return self._trouble

    def close(self, ok: bool) -> None:
        """Stop the thread, and close the run.

        The client marks the run as finished if `ok` is true and all points are acknowledged.
        """
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        # The thread may be blocked in a request until the client times out. Do not delay the exit for that.
        self._thread.join(self.seconds if ok else 1.0)
        if not self._thread.is_alive():
            self.client.close(ok and not self._points)

    # -- the thread --------------------------------------------------------------------------------------
    def _run(self) -> None:
        is_connected = False
        while True:
            with self._changed:
                if is_connected:
                    self._changed.wait_for(lambda: self._ended or self._points)
                if self._ended:
                    return
                points = tuple(self._points)
            try:
                if not is_connected:
                    self.client.connect()
                    is_connected = True
                unsent, trouble = self.client.send(points)
            except Exception as error:  # An error in the tracker's client must not stop training.
                unsent, trouble = points, f"{type(error).__name__}: {error}"
            self._tell(trouble)
            with self._changed:
                self._points[: len(points)] = unsent
                self._acknowledged += len(points) - len(unsent)
                self._changed.notify_all()
                if unsent or trouble:
                    pause = AFTER_TROUBLE if trouble else PAUSE
                    self._changed.wait_for(lambda: self._ended, pause)

    def _tell(self, trouble: str) -> None:
        """Report once when the tracker stops accepting points, and once when it accepts them again."""
        name, before = self.client.name, self._trouble
        with self._changed:
            self._trouble = trouble
        if trouble and not before:
            self._trouble_since = time.monotonic()
            self._say(
                f"{name} accepts no points ({' '.join(trouble.split())[:300]}): they are kept and sent later"
            )
        if before and not trouble:
            self._say(f"{name} accepts points again after {time.monotonic() - self._trouble_since:.0f} s")
