"""Events that may explain why pods are late, read once for all jobs of a namespace."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from harness.core.kubernetes import Object
from harness.torchrun_controller.decide.stalled import time_of

KEPT = timedelta(seconds=5)
SHARE = 20
"""Where a namespace has many Events, to read them takes the API server at most this part of the time."""
SELECTOR = "type=Warning"
OF_CLAIMS = "type!=Warning,involvedObject.kind=PersistentVolumeClaim"
OF_PULLS = "type!=Warning,reason=Pulling"
"""A pod that pulls its image has left behind what an older warning reports."""


class Warnings:
    """The Events that may explain a wait, by namespace. All jobs of a namespace share one answer."""

    def __init__(
        self, read: Callable[[str, str], list[Object]], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`read(namespace, field selector)` returns Events, oldest first."""
        self.read, self.monotonic = read, monotonic
        self._kept: dict[str, tuple[datetime, timedelta, list[Object]]] = {}
        """For each namespace: when its Events were read, how long that counts, and the Events."""
        self._lock = threading.Lock()

    def of(self, namespace: str, now: datetime) -> list[Object]:
        """Return the Events of a namespace, oldest first, at most KEPT old, or SHARE times what reading them
        took.
        """
        with self._lock:
            self._kept = {
                each: kept for each, kept in self._kept.items() if timedelta(0) <= now - kept[0] < kept[1]
            }
            if namespace not in self._kept:
                began = self.monotonic()
                selected = [self.read(namespace, each) for each in (SELECTOR, OF_CLAIMS, OF_PULLS)]
                found = sorted((event for each in selected for event in each), key=time_of)
                took = timedelta(seconds=self.monotonic() - began)
                self._kept[namespace] = (now, max(KEPT, SHARE * took), found)
            return self._kept[namespace][2]
