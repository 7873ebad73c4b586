"""Periodically check whether the API server responds.

Watches cannot show this: no events arrive if the server hangs, but also if nothing in the cluster changes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from harness.core.kubernetes import Kube

EVERY_SECONDS = 2.0
ANSWER_SECONDS = 5.0


class Heartbeat:
    """Sends a request every EVERY_SECONDS until stopped.

    `on_gap` is called for each period without a response, once the period ends or `stop` is called.
    """

    def __init__(self, kube: Kube, on_gap: Callable[[str], None]) -> None:
        self._kube = kube
        self._on_gap = on_gap
        self._since: float | None = None
        self._reason = ""
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def silent(self) -> float:
        """Return the number of seconds since the first unanswered request, or 0.0 while the server
        responds."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def ask(self) -> bool:
        """Send a request to the API server immediately, and return whether the server responds."""
        start = time.monotonic()
        reason = self._kube.silence(ANSWER_SECONDS)
        with self._lock:
            if reason is None:
                self._end()
            elif self._since is None:
                self._since, self._reason = start, reason
        return reason is None

    def stop(self) -> None:
        """Stop sending requests. If the API server is not responding, report the current gap."""
        self._stop.set()
        with self._lock:
            self._end("; it did not recover")

    def _beat(self) -> None:
        while not self._stop.is_set():
            self.ask()
            self._stop.wait(EVERY_SECONDS)

    def _end(self, suffix: str = "") -> None:
        if self._since is not None and not (self._stop.is_set() and not suffix):
            self._on_gap(f"{self.silent:.1f} s without a response ({self._reason}){suffix}")
            self._since = None
