"""A cache of Events that can explain why pods are late. All jobs in a namespace share the cached Events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from harness.core.kubernetes import Object
from harness.torchrun_controller.decide.pod_start_delays import starts_on_a_node, time_of, waits_for_claims

LIFETIME = timedelta(seconds=5)
SHARE = 60
"""Events are reused for SHARE times the duration of the request that read them. There are at most three
requests, one for each field selector. The controller therefore spends at most 1/20 of its time on these
requests, even in a namespace with many Events."""
SELECTOR = "type=Warning"
OF_CLAIMS = "type!=Warning,involvedObject.kind=PersistentVolumeClaim"
OF_PULLS = "type!=Warning,reason=Pulling"
"""The field selector for Events about image pulls. Once a pod pulls its image, older warnings about the pod
are obsolete."""


def needed(pods: list[Object]) -> list[str]:
    """Return the field selectors for the Events that can explain why these pods are late."""
    claims, images = waits_for_claims(pods), starts_on_a_node(pods)
    return [SELECTOR, *([OF_CLAIMS] if claims else []), *([OF_PULLS] if images else [])]


class Warnings:
    """A cache of Events that can explain why pods are late, keyed by namespace and field selector."""

    def __init__(
        self, read: Callable[[str, str], list[Object]], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Create an empty cache. `read(namespace, field_selector)` returns Events, oldest first."""
        self.read, self.monotonic = read, monotonic
        self._entries: dict[tuple[str, str], tuple[datetime, timedelta, list[Object]]] = {}
        """Maps (namespace, field selector) to the time at which the Events were read, their lifetime, and the
        Events."""
        self._lock = threading.Lock()

    def of(self, namespace: str, now: datetime, selectors: list[str]) -> list[Object]:
        """Return a namespace's Events that match one of the selectors, oldest first.

        The Events' maximum age is LIFETIME or SHARE times the duration of the request, whichever is longer.
        """
        with self._lock:
            self._entries = {
                each: entry
                for each, entry in self._entries.items()
                if timedelta(0) <= now - entry[0] < entry[1]
            }
            for selector in selectors:
                if (namespace, selector) not in self._entries:
                    start = self.monotonic()
                    events = self.read(namespace, selector)
                    duration = timedelta(seconds=self.monotonic() - start)
                    self._entries[namespace, selector] = (now, max(LIFETIME, SHARE * duration), events)
            matches = [event for selector in selectors for event in self._entries[namespace, selector][2]]
            return sorted(matches, key=time_of)
