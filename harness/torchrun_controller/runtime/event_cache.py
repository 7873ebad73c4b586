"""A cache of Events that may explain why pods are late. All jobs of a namespace share it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from harness.core.kubernetes import Object
from harness.torchrun_controller.decide.stalled import time_of

KEPT = timedelta(seconds=5)
SHARE = 20
"""Events are reused for SHARE times the duration of reading them, so that reading takes at most 1/SHARE of
the time in a namespace with many Events."""
SELECTOR = "type=Warning"
OF_CLAIMS = "type!=Warning,involvedObject.kind=PersistentVolumeClaim"
OF_PULLS = "type!=Warning,reason=Pulling"
"""A pod that pulls its image has passed the problem that an older warning reports."""


class Warnings:
    """Events that may explain late pods, cached by namespace."""

    def __init__(
        self, read: Callable[[str, str], list[Object]], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Create an empty cache. `read(namespace, field_selector)` returns Events, oldest first."""
        self.read, self.monotonic = read, monotonic
        self._kept: dict[str, tuple[datetime, timedelta, list[Object]]] = {}
        """For each namespace: when its Events were read, how long they are valid, and the Events."""
        self._lock = threading.Lock()

    def of(self, namespace: str, now: datetime) -> list[Object]:
        """Return the Events of a namespace, oldest first.

        They are at most as old as KEPT or SHARE times the duration of reading them, whichever is longer.
        """
        with self._lock:
            self._kept = {
                each: kept for each, kept in self._kept.items() if timedelta(0) <= now - kept[0] < kept[1]
            }
            if namespace not in self._kept:
                began = self.monotonic()
                selected = [self.read(namespace, each) for each in (SELECTOR, OF_CLAIMS, OF_PULLS)]
                events = sorted((event for each in selected for event in each), key=time_of)
                took = timedelta(seconds=self.monotonic() - began)
                self._kept[namespace] = (now, max(KEPT, SHARE * took), events)
            return self._kept[namespace][2]
