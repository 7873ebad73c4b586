"""The values of a run that `list_runs` uses to filter and sort runs."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from typing import Any

from harness.tracker.query import curves
from harness.tracker.shared.requests import Refused
from harness.tracker.storage.database import Slow

MAX_PATH_LENGTH = 1024
MAX_PARTS = 64
"""A path such as config.optim.lr has at most MAX_PATH_LENGTH characters and at most MAX_PARTS parts, which
are separated by dots."""
COLUMNS = {
    "state": "status",
    "displayName": "name",
    "display_name": "name",
    "createdAt": "created_at",
    "updatedAt": "updated_at",
    "heartbeatAt": "heartbeat_at",
}
TIMES = ("created_at", "updated_at", "heartbeat_at")
DOCUMENTS = {"config": "config", "systemMetadata": "system_metadata"}
METRICS = ("summaryMetrics", "summary_metrics")


class Facts:
    """The values of one run that filters and sort orders use.

    Expensive values are read on first access and cached.
    """

    def __init__(self, db: sqlite3.Connection, row: sqlite3.Row, deadline: float = math.inf) -> None:
        """Create the object for a run.

        `deadline` is a time on the time.monotonic() clock, after which expensive reads raise Slow.
        """
        self._db = db
        self._deadline = deadline
        self.row = row
        self._documents: dict[str, Any] = {}
        self._metrics: dict[str, float | None] = {}

    def column(self, name: str) -> Any:
        """Return the value of one of the run's columns.

        As in Pluto, heartbeat_at is the time of the last point. If the run has no points, heartbeat_at is the
        time of the last heartbeat.
        """
        if name != "heartbeat_at":
            return self.row[name]
        query = "SELECT max(last) FROM writers WHERE run_id = ? AND kind = 'metrics'"
        return self._db.execute(query, (self.row["id"],)).fetchone()[0] or self.row["heartbeat_at"]

    def value(self, document: str, path: str) -> Any:
        """Return the value at a dotted path in the run's config or system metadata, or None if there is none.

        Raises Slow after the deadline.
        """
        self._in_time()
        if document not in self._documents:
            self._documents[document] = json.loads(self.row[DOCUMENTS[document]] or "null")
        value = _value_at(self._documents[document], path.split("."))
        if value is None and path.endswith(".value"):  # In wandb, the paths in a config end with ".value".
            value = _value_at(self._documents[document], path.removesuffix(".value").split("."))
        return value

    def metric(self, name: str) -> float | None:
        """Return the latest value of one of the run's metrics, or None if there is none.

        Raises Slow after the deadline.
        """
        self._in_time()
        if name not in self._metrics:
            point = curves.last(self._db, self.row["id"], name)
            self._metrics[name] = point[1] if point else None
        return self._metrics[name]

    def _in_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise Slow


def check_path(path: str) -> None:
    if len(path) > MAX_PATH_LENGTH or path.count(".") >= MAX_PARTS:
        raise Refused(400, f"a path can have at most {MAX_PATH_LENGTH} characters and {MAX_PARTS} parts")


def number_of(value: Any) -> float | None:
    """Return a value as a finite number, or None if it is not a finite number. As in Pluto, the value can be
    a string that contains the number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value) if not isinstance(value, str) or len(value) < 40 else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _value_at(value: Any, path: list[str]) -> Any:
    """Return the value at a dotted path in nested JSON objects, or None if there is none.

    A key can itself contain dots.
    """
    if not path:
        return value
    if isinstance(value, dict):
        for parts in range(1, len(path) + 1):
            key = ".".join(path[:parts])
            if key in value and (nested := _value_at(value[key], path[parts:])) is not None:
                return nested
    return None
