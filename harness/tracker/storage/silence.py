"""A running run without a sign of life reads as FAILED, with the limits of hosted Pluto.

It is looked at when a run is read, and never stored: a silent run that comes back is RUNNING again, what it
reports itself counts, and the audit view, which verdicts are made of, has the history as it was reported.
Signs of life are heartbeats, points, and whatever else changes a run. While the tracker was down it took
none, so time counts from its start at the earliest.
"""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime

HEARTBEAT_SECONDS = 150
"""After the last sign of life of a run that sent heartbeats."""
NEVER_BEAT = 12
"""So many times longer for a run that never sent one: 30 minutes."""
REASON = {"reason": "heartbeat-timeout"}
VIEW = """
CREATE TEMP VIEW seen AS SELECT
    id, project, external_id, number, display_id, name, tags, config, logger_settings, system_metadata,
    status_metadata, created_at, updated_at, status_updated, heartbeat_at, forked_from, fork_step, silent,
    CASE WHEN silent THEN 'FAILED' ELSE status END AS status
FROM (
    SELECT *, status = 'RUNNING' AND is_silent(
        max(
            updated_at, coalesce(heartbeat_at, ''), coalesce(status_updated, ''),
            coalesce((SELECT max(last) FROM writers WHERE run_id = runs.id AND kind = 'metrics'), '')
        ),
        heartbeat_at IS NOT NULL
    ) AS silent FROM runs
)
"""


def make_view(db: sqlite3.Connection, opened: datetime, seconds: float) -> None:
    """Give a connection the view `seen`: the table of runs, with `silent` and the status that follows.

    `opened`: when the tracker began. `seconds` as HEARTBEAT_SECONDS; 0: no run is silent.
    """

    def is_silent(last: str, beats: int) -> bool:
        limit = seconds if beats else seconds * NEVER_BEAT
        try:
            since = max(datetime.fromisoformat(last), opened)
        except (ValueError, TypeError):  # a time outside of the calendar, which a client gave
            return False
        return 0 < limit < (datetime.now(UTC) - since).total_seconds()

    db.create_function("is_silent", 2, is_silent)
    db.execute(VIEW)
