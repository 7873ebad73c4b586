"""silence.py: which signs of life count, and for how long."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta

import pytest

from harness.tracker.storage import run_timeouts
from harness.tracker.storage.schema import TABLES

LONG, SHORT, LONGER = 200, 100, 2000
"""Seconds ago: past the limit after a heartbeat, within it, past the limit of a run that never sent one."""


def ago(seconds: float) -> str:
    return (
        (datetime.now(UTC) - timedelta(seconds=seconds))
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z")
    )


@pytest.mark.parametrize(
    ("heartbeat", "points", "updated", "status", "shown"),
    [
        (LONG, None, LONGER, "RUNNING", "FAILED"),
        (LONG, LONG, LONGER, "RUNNING", "FAILED"),
        (SHORT, None, LONGER, "RUNNING", "RUNNING"),
        (LONG, SHORT, LONGER, "RUNNING", "RUNNING"),
        (LONG, LONG, SHORT, "RUNNING", "RUNNING"),
        (None, None, LONG, "RUNNING", "RUNNING"),
        (None, LONG, LONGER, "RUNNING", "RUNNING"),
        (None, LONGER, LONGER, "RUNNING", "FAILED"),
        (LONG, LONG, LONGER, "COMPLETED", "COMPLETED"),
        (LONG, LONG, LONGER, "CANCELLED", "CANCELLED"),
    ],
)
def test_the_last_sign_of_life_counts(
    heartbeat: float | None, points: float | None, updated: float, status: str, shown: str
) -> None:
    assert view(heartbeat, points, updated, status) == (shown, shown != status)


def test_no_limit_or_an_invalid_time_is_no_silence() -> None:
    assert view(LONG, None, LONGER, "RUNNING", seconds=0) == ("RUNNING", False)
    assert view(None, None, "99999999999999", "RUNNING") == ("RUNNING", False)


def test_time_counts_from_the_trackers_start() -> None:
    assert view(LONG, None, LONGER, "RUNNING", opened=SHORT) == ("RUNNING", False)
    assert view(LONG, None, LONGER, "RUNNING", opened=LONG) == ("FAILED", True)


def view(
    heartbeat: float | None,
    points: float | None,
    updated: float | str,
    status: str,
    seconds: float = run_timeouts.HEARTBEAT_SECONDS,
    opened: float = 10 * LONGER,
) -> tuple[str, bool]:
    """Return the status that is shown, and whether it is by silence."""
    db = sqlite3.connect(":memory:")
    db.row_factory = sqlite3.Row
    db.executescript(TABLES)
    run_timeouts.make_view(db, datetime.now(UTC) - timedelta(seconds=opened), seconds)
    db.execute(
        "INSERT INTO runs"
        " (id, project, number, display_id, name, status, created_at, updated_at, heartbeat_at)"
        " VALUES (1, 'p', 1, 'P-1', 'n', ?, ?, ?, ?)",
        (
            status,
            ago(LONGER),
            updated if isinstance(updated, str) else ago(updated),
            None if heartbeat is None else ago(heartbeat),
        ),
    )
    if points is not None:
        db.execute(
            "INSERT INTO writers VALUES (1, 'metrics', '', '', '', '', 1, 1, ?, ?)",
            (ago(LONGER), ago(points)),
        )
    db.execute("INSERT INTO writers VALUES (1, 'logs', '', '', '', '', 1, 1, ?, ?)", (ago(0), ago(0)))
    columns = {row["name"] for row in db.execute("PRAGMA table_info(runs)")}
    row = db.execute("SELECT * FROM run_states").fetchone()
    assert set(row.keys()) == columns | {"silent"}
    stored = db.execute("SELECT status FROM runs").fetchone()[0]
    assert stored == status
    return row["status"], bool(row["silent"])
