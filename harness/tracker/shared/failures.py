"""Requests that came to nothing: that the tracker failed, that it refused, whose sender hung up.

These are three different things: only the first is the tracker's fault. They are kept in memory, because a
full disk keeps nothing.
"""

from __future__ import annotations

import threading
from typing import Any

MOST = 100
"""How many different reasons are counted apart."""


class Failures:
    """Requests by reason and sender: how many, and when the first and the last came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[Any, ...], dict[str, Any]] = {}

    def add(self, reason: str, at: str, **of: Any) -> None:
        """Count one. `at` is RFC 3339. Past the first hundred different ones, the reason is "other"."""
        with self._lock:
            key = (reason, *of.values())
            if key not in self._found and len(self._found) >= MOST:
                reason, key = "other", ("other",)
                of = dict.fromkeys(of)
            failure = self._found.setdefault(key, {"reason": reason, "count": 0, "first": at, **of})
            failure["count"] += 1
            failure["last"] = at

    def all(self) -> list[dict[str, Any]]:
        with self._lock:
            return [dict(failure) for failure in self._found.values()]
