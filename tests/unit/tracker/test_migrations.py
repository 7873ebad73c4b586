"""migrations.py: a database of an earlier version is brought to this one with all that it holds."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.tracker.query import audit_view, series
from harness.tracker.storage import migrations
from harness.tracker.storage.database import Store, connect
from harness.tracker.storage.schema import BLOCKS, DIGESTS, TABLES

POINTS = """
CREATE INDEX requests_points ON requests (last_id) WHERE last_id IS NOT NULL;
CREATE TABLE points (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL, name TEXT NOT NULL, step INTEGER NOT NULL,
    time_ms INTEGER NOT NULL, value REAL
);
CREATE INDEX points_series ON points (run_id, name, step);
CREATE VIEW series AS
SELECT run_id, name, step, time_ms, value, id FROM (
    SELECT *, row_number() OVER (PARTITION BY run_id, name, step ORDER BY time_ms DESC, id DESC) AS place
    FROM points
) WHERE place = 1;
"""
"""What versions 1 and 2 had in place of BLOCKS."""
INSERT = "INSERT INTO points (run_id, name, step, time_ms, value) VALUES (?, ?, ?, ?, ?)"
NAMES = st.sampled_from(["a", "b", 'q"\\é'])
SENT = st.lists(st.tuples(NAMES, st.integers(0, 3), st.integers(0, 3), st.floats() | st.none()), max_size=6)
"""The rows of one request. SQLite kept NaN as NULL and -0.0 as 0."""


def old(version: int) -> str:
    """Return the tables of an earlier version."""
    tables = TABLES.replace(DIGESTS, "")
    tables = tables if version > 2 else tables.replace(BLOCKS, POINTS)
    if version == 4:
        return f"{tables}; PRAGMA user_version={version};"
    for now, then in (
        (", process TEXT NOT NULL DEFAULT ''", ""),
        ("peer, process)", "peer)"),
        (", process TEXT", ""),
    ):
        tables = tables.replace(now, then)
    if version == 1:
        start = tables.index("CREATE TABLE writers")
        tables = tables[:start]
        for column in (",\n    launch TEXT, sender TEXT", ", launch TEXT"):
            tables = tables.replace(column, "")
    return f"{tables}; PRAGMA user_version={version};"


def columns(db: sqlite3.Connection) -> dict[str, list[tuple[object, ...]]]:
    """Return the columns of every table, and the indexes as a table of their own."""
    master = db.execute("SELECT name, type FROM sqlite_master ORDER BY name").fetchall()
    found = {
        name: db.execute(f"PRAGMA table_info({name})").fetchall() for name, kind in master if kind == "table"
    }
    found["indexes"] = [(name,) for name, kind in master if kind == "index"]
    return {
        name: sorted((row[1:] if row[1:] else row) for row in map(tuple, rows))
        for name, rows in found.items()
    }


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_it_becomes_a_database_of_this_version(tmp_path: Path, version: int) -> None:
    """Contract: the same tables, and the points that were there."""
    path = tmp_path / "tracker.db"
    db = sqlite3.connect(path)
    db.executescript(old(version))
    if version < 3:
        db.execute(INSERT, (1, "loss", 0, 1, 2.0))
    db.commit()
    db.close()
    Store(path).close()
    db, made = connect(path), sqlite3.connect(":memory:")
    made.executescript(TABLES)
    assert columns(db) == columns(made)
    if version < 3:
        assert list(series.sent(db, 1, "loss").values) == [2.0]
    db.close()
    made.close()


@given(st.lists(st.tuples(st.integers(1, 2), st.booleans(), SENT), max_size=8))
def test_every_point_stays_with_its_sender(
    sent: list[tuple[int, bool, list[tuple[str, int, int, float | None]]]],
) -> None:
    """Contract: the audit gives the rows in their order, with their senders; what no request is known for
    stays too.
    """
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.row_factory = sqlite3.Row
    db.executescript(old(2))
    expected: list[tuple[object, ...]] = []
    for number, (run, known, rows) in enumerate(sent):
        before = len(expected)
        for name, step, time_ms, value in rows:
            db.execute(INSERT, (run, name, step, time_ms, value))
            shown = math.nan if value is None else value + 0.0
            expected.append((run, name, step, repr(shown), time_ms, f"rank{number}" if known else None))
        if known:
            ids = (before + 1, len(expected)) if rows else (None, None)
            db.execute(
                "INSERT INTO requests (kind, run_id, sender, received_at, rows, first_id, last_id)"
                " VALUES ('metrics', ?, ?, 'then', ?, ?, ?)",
                (run, f"rank{number}", len(rows), *ids),
            )
    migrations.migrate(db, 2)
    rows_, following = audit_view.points(db, [1, 2], 0, 10_000)
    db.close()
    found = [(*row[:3], repr(float(row[3])), row[4], row[6]) for row in rows_]
    assert following is None
    assert found == expected
