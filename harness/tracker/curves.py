"""Curves for the eye: a series in buckets with the lowest and the highest value of each.

No extreme is dropped, whatever the length. Only this module and series.py know how points are stored.
"""

from __future__ import annotations

import math
import sqlite3
from dataclasses import dataclass

MOST_BUCKETS = 2000


@dataclass(frozen=True)
class Bucket:
    """Steps `first` to `last`. The values are None where none is finite. `odd`: how many are not finite."""

    first: int
    last: int
    low: float | None
    high: float | None
    mean: float | None
    count: int
    odd: int


@dataclass(frozen=True)
class Curve:
    """`points` is how many steps were read; `exact`: each bucket is one step."""

    points: int
    exact: bool
    buckets: list[Bucket]


def last(db: sqlite3.Connection, run: int, name: str) -> tuple[int, float] | None:
    """Return (step, value) of the last finite value of the deduplicated series, or None."""
    rows = db.execute(
        "SELECT step, value FROM points WHERE run_id = ? AND name = ?"
        " ORDER BY step DESC, time_ms DESC, id DESC",
        (run, name),
    )
    seen: int | None = None
    for step, value in rows:
        if step != seen and value is not None and math.isfinite(value):
            return step, value
        seen = step
    return None


def extent(
    db: sqlite3.Connection, run: int, name: str, first: int = 0, until: int | None = None
) -> tuple[int, int, int]:
    """Return the first step, the last one and the number of rows of a series. (0, 0, 0): no rows."""
    row = db.execute(
        "SELECT min(step), max(step), count(*) FROM points"
        " WHERE run_id = ? AND name = ? AND step BETWEEN ? AND ?",
        (run, name, first, (1 << 63) - 1 if until is None else until),
    ).fetchone()
    return (0, 0, 0) if row[2] == 0 else (row[0], row[1], row[2])


def overwritten(db: sqlite3.Connection, run: int, name: str) -> tuple[int, int]:
    """Return how many rows a series has, and how many of them are hidden by another one of the same step."""
    rows, steps = db.execute(
        "SELECT coalesce(sum(n), 0), count(*) FROM ("
        "SELECT count(*) AS n FROM points WHERE run_id = ? AND name = ? GROUP BY step)",
        (run, name),
    ).fetchone()
    return rows, rows - steps


def clashes(db: sqlite3.Connection, run: int, name: str) -> int:
    """Return how many steps of a series have rows with different values. A row that came twice is none."""
    found: int = db.execute(
        "SELECT count(*) FROM (SELECT 1 FROM points WHERE run_id = ? AND name = ? GROUP BY step"
        " HAVING count(*) > 1 AND (min(value) <> max(value) OR count(value) NOT IN (0, count(*))))",
        (run, name),
    ).fetchone()[0]
    return found


def curve(
    db: sqlite3.Connection, run: int, name: str, buckets: int, first: int = 0, until: int | None = None
) -> Curve:
    """Return the deduplicated series between two steps, in at most `buckets` buckets of equal width."""
    begin, end, rows = extent(db, run, name, first, until)
    if rows == 0:
        return Curve(0, True, [])
    buckets = max(1, min(buckets, MOST_BUCKETS))
    if rows <= buckets:
        found = [_bucket(step, step, [value]) for step, value in _shown(db, run, name, begin, end).items()]
        return Curve(len(found), True, found)
    width = -(-(end - begin + 1) // buckets)
    plain = overwritten(db, run, name)[1] == 0
    made: list[Bucket] = []
    at = begin
    while at <= end:
        if plain:
            one = _summed(db, run, name, at, at + width - 1)
        else:
            shown = _shown(db, run, name, at, at + width - 1)
            one = _bucket(min(shown), max(shown), list(shown.values())) if shown else None
        if one is not None:
            made.append(one)
            at += width
        else:  # a gap: go to the bucket of the next step that there is
            following = _next(db, run, name, at + width, end)
            at = end + 1 if following is None else begin + (following - begin) // width * width
    return Curve(sum(one.count + one.odd for one in made), width == 1, made)


def _next(db: sqlite3.Connection, run: int, name: str, first: int, until: int) -> int | None:
    query = "SELECT min(step) FROM points WHERE run_id = ? AND name = ? AND step BETWEEN ? AND ?"
    found: int | None = db.execute(query, (run, name, first, until)).fetchone()[0]
    return found


def _shown(db: sqlite3.Connection, run: int, name: str, first: int, until: int) -> dict[int, float | None]:
    """Return value by step. Of rows with the same step, the highest client time wins, then the last one."""
    return dict(
        db.execute(
            "SELECT step, value FROM points WHERE run_id = ? AND name = ? AND step BETWEEN ? AND ?"
            " ORDER BY step, time_ms, id",
            (run, name, first, until),
        ).fetchall()
    )


def _summed(db: sqlite3.Connection, run: int, name: str, first: int, until: int) -> Bucket | None:
    """Return a bucket of a series without duplicates, as the database sums it up."""
    row = db.execute(
        "SELECT min(step), max(step), min(value), max(value), avg(value), count(value), count(*) FROM points"
        " WHERE run_id = ? AND name = ? AND step BETWEEN ? AND ?",
        (run, name, first, until),
    ).fetchone()
    if row[6] == 0:
        return None
    if all(value is None or math.isfinite(value) for value in row[2:5]):
        return Bucket(row[0], row[1], row[2], row[3], row[4], row[5], row[6] - row[5])
    return _bucket(row[0], row[1], list(_shown(db, run, name, first, until).values()))


def _bucket(first: int, until: int, values: list[float | None]) -> Bucket:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    odd = len(values) - len(finite)
    if not finite:
        return Bucket(first, until, None, None, None, 0, odd)
    mean = math.fsum(value / len(finite) for value in finite)
    return Bucket(first, until, min(finite), max(finite), mean, len(finite), odd)
