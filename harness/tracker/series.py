"""Metric series: Pluto's deduplicated view, the raw rows under it, and statistics."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from typing import Any

from harness.tracker.http import from_ms

Found = dict[str, Any]
AGGREGATIONS = ("MIN", "MAX", "AVG", "LAST", "VARIANCE")


def names(db: sqlite3.Connection, project: str, runs: Sequence[int], search: str, limit: int) -> list[str]:
    """Return distinct metric names of a project, or of some of its runs."""
    wanted = set(runs)
    found: set[str] = set()
    for (run,) in db.execute("SELECT id FROM runs WHERE project = ?", (project,)).fetchall():
        if not wanted or run in wanted:
            found.update(name for name in of_run(db, run) if search.lower() in name.lower())
    return sorted(found)[:limit]


def of_run(db: sqlite3.Connection, run: int) -> list[str]:
    """Return the names with points, by one index step for each name rather than for each point."""
    rows = db.execute(
        "WITH RECURSIVE walk (name) AS ("
        " SELECT min(name) FROM points WHERE run_id = :run UNION ALL"
        " SELECT (SELECT min(name) FROM points WHERE run_id = :run AND name > walk.name)"
        " FROM walk WHERE walk.name IS NOT NULL)"
        " SELECT name FROM walk WHERE name IS NOT NULL",
        {"run": run},
    )
    return [row[0] for row in rows]


def _point(row: sqlite3.Row) -> Found:
    value = row["value"]
    flag = "NaN" if value is None else "" if math.isfinite(value) else "Inf" if value > 0 else "-Inf"
    return {
        "logName": row["name"],
        "logGroup": row["name"].rpartition("/")[0],
        "value": 0 if flag else value,
        "valueFlag": flag,
        "time": from_ms(row["time_ms"]),
        "step": row["step"],
    }


def _sampled(rows: list[sqlite3.Row], limit: int) -> list[sqlite3.Row]:
    """Return at most `limit` of them, evenly spread, first and last included."""
    if len(rows) <= limit:
        return rows
    if limit == 1:
        return rows[-1:]
    last = len(rows) - 1
    return [rows[round(i * last / (limit - 1))] for i in range(limit)]


def points(
    db: sqlite3.Connection, run: int, name: str | None, limit: int, first: int | None, last: int | None
) -> list[Found]:
    """Return the deduplicated points by step, at most `limit` of each metric."""
    found: list[Found] = []
    for one in of_run(db, run) if name is None else [name]:
        rows = db.execute(
            "SELECT * FROM series WHERE run_id = ? AND name = ? AND step BETWEEN ? AND ? ORDER BY step",
            (run, one, *_window(first, last)),
        ).fetchall()
        found.extend(_point(row) for row in _sampled(rows, limit))
    return found


def raw(
    db: sqlite3.Connection, run: int, name: str, limit: int, first: int | None, last: int | None
) -> tuple[list[Found], bool]:
    """Return every row as it was sent, duplicates included, and whether there are more than `limit`."""
    rows = db.execute(
        "SELECT * FROM points WHERE run_id = ? AND name = ? AND step BETWEEN ? AND ?"
        " ORDER BY step, id LIMIT ?",
        (run, name, *_window(first, last), limit + 1),
    ).fetchall()
    return [_point(row) for row in rows[:limit]], len(rows) > limit


def _window(first: int | None, last: int | None) -> tuple[int, int]:
    return first or 0, (1 << 63) - 1 if last is None else last


def statistics(db: sqlite3.Connection, run: int, name: str) -> Found | None:
    """Return statistics of the deduplicated finite values, or None when there is none."""
    rows = db.execute(
        "SELECT step, value FROM series WHERE run_id = ? AND name = ? ORDER BY step", (run, name)
    ).fetchall()
    finite = [(row["step"], row["value"]) for row in rows if row["value"] is not None]
    finite = [(step, value) for step, value in finite if math.isfinite(value)]
    if not finite:
        return None
    values = [value for _, value in finite]
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
    return {
        "logName": name,
        "logGroup": name.rpartition("/")[0],
        "count": len(values),
        "min": min(values),
        "max": max(values),
        "mean": mean,
        "stddev": math.sqrt(variance),
        "last": {"step": finite[-1][0], "value": finite[-1][1]},
        "first": {"step": finite[0][0], "value": finite[0][1]},
    }


def aggregate(found: Found, aggregation: str) -> float:
    """Return one of AGGREGATIONS of a metric's statistics."""
    value = {
        "MIN": found["min"],
        "MAX": found["max"],
        "AVG": found["mean"],
        "LAST": found["last"]["value"],
        "VARIANCE": found["stddev"] ** 2,
    }[aggregation]
    return float(value)
