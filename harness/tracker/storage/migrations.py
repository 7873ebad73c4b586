"""Migrate a database from an earlier version to the current version, with one transaction per migration
step."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator
from itertools import groupby

from harness.tracker.shared import blocks
from harness.tracker.storage.schema import BLOCKS, CLAIMS, DIGESTS, WRITERS

MAX_POINTS = 1_000_000
"""The maximum number of points in a block."""
Piece = tuple[int, int, int | None]
"""A range of consecutive points: (first id, last id, request id). An unknown request id is None."""


def migrate(db: sqlite3.Connection, version: int) -> int:
    """Apply all migration steps to a database whose schema version is `version`.

    Return the resulting version.
    """
    while version in STEPS:
        db.execute("BEGIN IMMEDIATE")
        STEPS[version](db)
        version += 1
        db.execute(f"PRAGMA user_version={version}")
        db.execute("COMMIT")
    return version


def _to_2(db: sqlite3.Connection) -> None:
    """Add the `launch` column to several tables, and add the tables for writers and claims."""
    _run(db, "ALTER TABLE attachments ADD COLUMN launch TEXT")
    _run(db, "ALTER TABLE requests ADD COLUMN launch TEXT")
    _run(db, "ALTER TABLE status_events ADD COLUMN launch TEXT")
    _run(db, "ALTER TABLE status_events ADD COLUMN sender TEXT")
    _run(db, WRITERS)
    _run(db, CLAIMS)


def _to_3(db: sqlite3.Connection) -> None:
    """Convert points from one row per point to one block per request."""
    _run(db, BLOCKS)
    for first, last, request in list(_pieces(db)):
        rows = db.execute(
            "SELECT run_id, id, name, step, time_ms, value FROM points WHERE id BETWEEN ? AND ? ORDER BY id",
            (first, last),
        )
        for _, group in groupby(
            enumerate(rows), lambda at: (at[1][0], at[1][1] - at[0], at[0] // MAX_POINTS)
        ):
            _write_block(db, [tuple(row) for _, row in group], request)
    _run(db, "DROP VIEW series; DROP INDEX IF EXISTS requests_points; DROP TABLE points")


def _to_4(db: sqlite3.Connection) -> None:
    """Add the `process` column to the tables for attachments and writers."""
    _run(db, "ALTER TABLE attachments ADD COLUMN process TEXT")
    if "process" in {row[1] for row in db.execute("PRAGMA table_info(writers)")}:
        return  # `_to_2` has already created the table with this column.
    _run(db, f"ALTER TABLE writers RENAME TO writers_3; {WRITERS}")
    old = "run_id, kind, launch, sender, peer, requests, rows, first, last"
    copy = f"INSERT INTO writers ({old}) SELECT {old} FROM writers_3"  # noqa: S608 - names of columns
    _run(db, f"{copy}; DROP TABLE writers_3")


def _to_5(db: sqlite3.Connection) -> None:
    """Add the tables for digest reports and their sizes."""
    _run(db, DIGESTS)


def _pieces(db: sqlite3.Connection) -> Iterator[Piece]:
    """Yield the range of each request's points, and the ranges of points whose request is not known."""
    after = 0
    query = "SELECT first_id, last_id, id FROM requests WHERE last_id IS NOT NULL ORDER BY last_id"
    for first, last, request in db.execute(query):
        if first > after + 1:
            yield after + 1, first - 1, None
        yield first, last, request
        after = last
    yield after + 1, (1 << 63) - 1, None


def _write_block(
    db: sqlite3.Connection, rows: list[tuple[int, int, str, int, int, float | None]], request: int | None
) -> None:
    run, first, *_ = rows[0]
    block = blocks.of_rows([(row[2], row[3], row[4], math.nan if row[5] is None else row[5]) for row in rows])
    shape = blocks.shape_of(db, run, block.title)
    db.execute(
        "INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?)",
        (rows[-1][1], first, run, shape, request, block.packed()),
    )


def _run(db: sqlite3.Connection, script: str) -> None:
    """Execute statements inside the open transaction. `executescript` would commit the transaction first."""
    for statement in filter(str.strip, script.split(";")):
        db.execute(statement)


STEPS: dict[int, Callable[[sqlite3.Connection], None]] = {1: _to_2, 2: _to_3, 3: _to_4, 4: _to_5}
