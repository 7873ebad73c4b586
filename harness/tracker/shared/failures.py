"""Count requests that failed in the tracker, that were rejected, or whose sender disconnected.

Of these, only the failed requests are the tracker's fault. The counts are kept in memory, because a full disk
could not store them.
"""

from __future__ import annotations

import threading
from typing import Any

MAX_COMBINATIONS = 100
"""The maximum number of combinations of reason and sender that are counted separately."""


class Failures:
    """Counters of requests, one for each reason and sender. Each counter includes the times of its first and
    last request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: dict[tuple[Any, ...], dict[str, Any]] = {}

    def add(self, reason: str, at: str, **of: Any) -> None:
        """Count one request.

        `at` is the time of the request in RFC 3339 format. Once there are MAX_COMBINATIONS combinations of
        reason and sender, further combinations are counted together as "other".
        """
        with self._lock:
            key = (reason, *of.values())
            if key not in self._failures and len(self._failures) >= MAX_COMBINATIONS:
                reason, key = "other", ("other",)
                of = dict.fromkeys(of)
            failure = self._failures.setdefault(key, {"reason": reason, "count": 0, "first": at, **of})
            failure["count"] += 1
            failure["last"] = at

    def all(self) -> list[dict[str, Any]]:
        with self._lock:
            return [dict(failure) for failure in self._failures.values()]
