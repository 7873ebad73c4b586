"""A cache of Events that can explain why pods are late. All jobs in a namespace share them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from harness.core.kubernetes import Object
from harness.torchrun_controller.decide.stalled import time_of

KEPT = timedelta(seconds=5)
SHARE = 20
"""A namespace's Events are reused for SHARE times as long as the request for them took.

In a namespace with many Events, the controller therefore spends at most 1/SHARE of its time on these
requests.
"""
SELECTOR = "type=Warning"
OF_CLAIMS = "type!=Warning,involvedObject.kind=PersistentVolumeClaim"
OF_PULLS = "type!=Warning,reason=Pulling"
"""The Events about image pulls. Once a pod pulls its image, the problem in older warnings is solved."""


class Warnings:
    """A cache of Events, keyed by namespace, to explain late pods."""

    def __init__(
        self, read: Callable[[str, str], list[Object]], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Create an empty cache. `read(namespace, field_selector)` returns Events, oldest first."""
        self.read, self.monotonic = read, monotonic
        self._kept: dict[str, tuple[datetime, timedelta, list[Object]]] = {}
        """For each namespace, the time when the Events were read, how long they are valid, and the Events."""
        self._lock = threading.Lock()

    def of(self, namespace: str, now: datetime) -> list[Object]:
        """Return a namespace's Events, oldest first.

        Their maximum age is KEPT, or SHARE times the duration of the request if that is longer.
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
