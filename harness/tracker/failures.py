"""Requests that the tracker itself could not serve. They are kept in memory, because a full disk keeps
nothing.
"""

from __future__ import annotations

import threading
from typing import Any

MOST = 100
"""How many different reasons are counted apart."""


class Failures:
    """Failures by reason: how many, and when the first and the last came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, dict[str, Any]] = {}

    def add(self, reason: str, at: str) -> None:
        """Count a failure. `at` is RFC 3339. Reasons past the first hundred count as "other"."""
        with self._lock:
            key = reason if reason in self._found or len(self._found) < MOST else "other"
            failure = self._found.setdefault(key, {"reason": key, "count": 0, "first": at})
            failure["count"] += 1
            failure["last"] = at

    def all(self) -> list[dict[str, Any]]:
        with self._lock:
            return [dict(failure) for failure in self._found.values()]
