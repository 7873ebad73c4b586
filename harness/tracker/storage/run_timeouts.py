"""Show a RUNNING run as FAILED if it shows no sign of life for a certain time. The timeout is the same as in
hosted Pluto.

The status FAILED is computed when a run is read, and never stored. After a new sign of life, the run is shown
as RUNNING again. A status that the run reports takes precedence. Verdicts are not affected, because the audit
view contains the status history as reported. Signs of life are heartbeats, points, and any other change to a
run. A stopped tracker cannot receive signs of life, so the timeout never begins before the tracker has
started.
"""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime

HEARTBEAT_SECONDS = 150
"""The number of seconds without a sign of life after which a run that has sent heartbeats is shown as
FAILED."""
NEVER_BEAT = 12
"""The factor by which the timeout is longer for a run that never sent a heartbeat. By default, the timeout of
such a run is 30 minutes."""
REASON = {"reason": "heartbeat-timeout"}
VIEW = """
CREATE TEMP VIEW run_states AS SELECT
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
    """Create the `run_states` view in a database connection.

    The view contains the runs with their current status and a `silent` column.

    `opened` is the tracker's start time. `seconds` replaces HEARTBEAT_SECONDS. If `seconds` is 0, no run is
    silent.
    """

    def is_silent(last: str, beats: int) -> bool:
        limit = seconds if beats else seconds * NEVER_BEAT
        try:
            since = max(datetime.fromisoformat(last), opened)
        except (ValueError, TypeError):  # A client can send a time that no date can represent.
            return False
        return 0 < limit < (datetime.now(UTC) - since).total_seconds()

    db.create_function("is_silent", 2, is_silent)
    db.execute(VIEW)
