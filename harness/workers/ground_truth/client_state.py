"""Read the Pluto client's queue: which points it contains, and which of them the tracker acknowledged.

The queue is the SQLite database sync.db below PLUTO_DIR (pluto-ml 0.0.29). This module uses only the standard
library.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import client_rules

METRIC = 0
SENT = 2
"""The values of RecordType.METRIC and SyncStatus.COMPLETED in pluto.sync.store, as stored in the queue."""
Ranges = list[list[int]]


def read(pluto_dir: str) -> dict[str, Any] | None:
    """Return {"whole": …, "sent": {metric: ranges of steps}, "unsent": {…}, "error": text}.

    Returns None if there is no queue or more than one, or if it cannot be read. The client deletes sent
    points from the queue after five minutes. If it has already deleted any, `whole` is false, and a point
    that is in neither `sent` nor `unsent` may have been sent.
    """
    databases = list(Path(pluto_dir).glob("**/sync.db"))
    if len(databases) != 1:
        return None
    try:
        db = sqlite3.connect(f"file:{databases[0]}?mode=ro", uri=True, timeout=10)
        try:
            rows = db.execute(
                "SELECT status, step, payload_json, error_message FROM sync_queue WHERE record_type = ?",
                (METRIC,),
            ).fetchall()
            first_id, row_count = db.execute("SELECT min(id), count(*) FROM sync_queue").fetchone()
        finally:
            db.close()
    except sqlite3.Error:
        return None
    steps: dict[bool, dict[str, set[int]]] = {True: {}, False: {}}
    error = ""
    for status, step, payload, message in rows:
        for metric in json.loads(payload):
            steps[status == SENT].setdefault(metric, set()).add(client_rules.whole(step) or 0)
        error = message if status != SENT and message else error
    return {
        "whole": not row_count or first_id == 1,
        "sent": {metric: ranges(metric_steps) for metric, metric_steps in steps[True].items()},
        "unsent": {metric: ranges(metric_steps) for metric, metric_steps in steps[False].items()},
        "error": str(error)[:300],
    }


def ranges(steps: Iterable[int]) -> Ranges:
    """Return the steps as [[first, last], …], with one pair per range of consecutive steps."""
    result: Ranges = []
    for step in sorted(steps):
        if result and step == result[-1][1] + 1:
            result[-1][1] = step
        else:
            result.append([step, step])
    return result
