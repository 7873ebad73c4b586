"""Queries for metric series: points deduplicated as in Pluto, raw rows, and statistics."""

from __future__ import annotations

import json
import math
import operator
import sqlite3
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from harness.tracker.shared import blocks
from harness.tracker.shared.requests import from_ms

Found = dict[str, Any]
LARGE = 1e150
"""If the largest absolute value in a series is LARGE or more, the values are scaled down before they are
squared, so that the squares do not overflow a float."""
AGGREGATIONS = ("MIN", "MAX", "AVG", "LAST", "VARIANCE")


def names(db: sqlite3.Connection, project: str, runs: Sequence[int], search: str, limit: int) -> list[str]:
    """Return the distinct metric names of a project's runs.

    If `runs` is not empty, only these runs are considered.
    """
    run_ids = set(runs)
    matching: set[str] = set()
    for (run,) in db.execute("SELECT id FROM runs WHERE project = ?", (project,)).fetchall():
        if not run_ids or run in run_ids:
            matching.update(name for name in of_run(db, run) if search.lower() in name.lower())
    return sorted(matching)[:limit]


def of_run(db: sqlite3.Connection, run: int) -> list[str]:
    """Return the names of a run's metrics."""
    shapes = db.execute("SELECT names FROM shapes WHERE run_id = ?", (run,))
    return sorted({name for (title,) in shapes for name in json.loads(title)})


@dataclass(frozen=True)
class Columns:
    """One metric's points, stored in columns."""

    steps: array[int]
    times: array[int]
    values: array[float]
    older: int = 0
    """The number of rows omitted because a newer row has the same step."""

    def __len__(self) -> int:
        return len(self.steps)

    def ordered(self) -> bool:
        """Return whether the points are sorted by step and each step occurs only once."""
        return all(map(operator.lt, self.steps, islice(self.steps, 1, None)))

    def part(self, first: int, end: int) -> Columns:
        """Return the points from index `first` up to, but not including, index `end`."""
        return Columns(self.steps[first:end], self.times[first:end], self.values[first:end])

    def at(self, places: Iterable[int]) -> Columns:
        """Return the points at the indexes in `places`."""
        indexes, points = list(places), empty()
        blocks.extend(points.steps, self.steps, indexes)
        blocks.extend(points.times, self.times, indexes)
        blocks.extend(points.values, self.values, indexes)
        return points

    def append(self, other: Columns) -> None:
        """Append the points of another `Columns` object."""
        self.steps.extend(other.steps)
        self.times.extend(other.times)
        self.values.extend(other.values)


def empty() -> Columns:
    return Columns(array("q"), array("q"), array("d"))


def sent(
    db: sqlite3.Connection, run: int, name: str, first: int | None = None, last: int | None = None
) -> Columns:
    """Return every raw point of a metric with a step from `first` to `last`, in arrival order."""
    columns = empty()
    shapes: dict[int, list[str]] = {}
    quoted_name = json.dumps(name, ensure_ascii=False)
    query = "SELECT id, names FROM shapes WHERE run_id = ? AND instr(names, ?) > 0"
    for shape, title in db.execute(query, (run, quoted_name)):
        names = json.loads(title)
        if name in names:
            shapes[shape] = names
    rows = db.execute(
        "SELECT shape_id, last_id - first_id + 1, packed FROM blocks"
        " WHERE shape_id IN (SELECT value FROM json_each(?)) ORDER BY last_id",
        (json.dumps(list(shapes)),),
    )
    for shape, count, packed in rows:
        names = shapes[shape]
        block = blocks.unpacked(names, count, packed)
        places = block.places(names.index(name))
        blocks.extend(columns.steps, block.steps, places)
        blocks.extend(columns.times, block.times, places)
        blocks.extend(columns.values, block.values, places)
    if first is None and last is None:
        return columns
    low, high = _window(first, last)
    if columns.ordered():
        return columns.part(bisect_left(columns.steps, low), bisect_right(columns.steps, high))
    return columns.at(at for at, step in enumerate(columns.steps) if low <= step <= high)


def deduplicated(
    db: sqlite3.Connection, run: int, name: str, first: int | None = None, last: int | None = None
) -> Columns:
    """Return a metric's points sorted by step, deduplicated as in Pluto.

    For each step, only the point with the highest client time is returned, as in Pluto's
    ReplacingMergeTree(time). If several points have this time, the point that was received last is returned.
    """
    columns = sent(db, run, name, first, last)
    if columns.ordered():
        return columns
    steps, times = columns.steps, columns.times
    best: dict[int, int] = {}
    for at, step in enumerate(steps):
        before = best.get(step)
        if before is None or times[at] >= times[before]:
            best[step] = at
    newest = columns.at(best[step] for step in sorted(best))
    return replace(newest, older=len(columns) - len(newest))


def _point(name: str, step: int, time_ms: int, value: float) -> Found:
    flag = "NaN" if math.isnan(value) else "" if math.isfinite(value) else "Inf" if value > 0 else "-Inf"
    return {
        "logName": name,
        "logGroup": name.rpartition("/")[0],
        "value": 0 if flag else value,
        "valueFlag": flag,
        "time": from_ms(time_ms),
        "step": step,
    }


def sampled(points: Columns, limit: int) -> Columns:
    """Return at most `limit` evenly spaced points, including the first and the last point."""
    if len(points) <= limit:
        return points
    last = len(points) - 1
    return points.at([last] if limit == 1 else [round(i * last / (limit - 1)) for i in range(limit)])


def listed(name: str, points: Columns) -> list[Found]:
    rows = zip(points.steps, points.times, points.values, strict=True)
    return [_point(name, *row) for row in rows]


def raw(
    db: sqlite3.Connection, run: int, name: str, limit: int, first: int | None, last: int | None
) -> tuple[list[Found], bool]:
    """Return at most `limit` raw rows of a metric, sorted by step and including duplicates, and whether there
    are more rows."""
    columns = sent(db, run, name, first, last)
    order = sorted(range(len(columns)), key=columns.steps.__getitem__)
    return listed(name, columns.at(order[:limit])), len(columns) > limit


def _window(first: int | None, last: int | None) -> tuple[int, int]:
    return first or 0, (1 << 63) - 1 if last is None else last


def statistics(db: sqlite3.Connection, run: int, name: str) -> Found | None:
    """Return statistics of a series' deduplicated finite values, or None if the series has no finite
    values."""
    columns = deduplicated(db, run, name)
    finite = [pair for pair in zip(columns.steps, columns.values, strict=True) if math.isfinite(pair[1])]
    if not finite:
        return None
    values = [value for _, value in finite]
    middle = mean(values)
    return {
        "logName": name,
        "logGroup": name.rpartition("/")[0],
        "count": len(values),
        "min": min(values),
        "max": max(values),
        "mean": middle,
        "stddev": _spread(values, middle),
        "last": {"step": finite[-1][0], "value": finite[-1][1]},
        "first": {"step": finite[0][0], "value": finite[0][1]},
    }


def mean(values: Sequence[float]) -> float:
    """Return the mean of a list of finite values, even if their sum would overflow a float."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        scale = max(map(abs, values))
        return math.fsum(value / scale for value in values) / len(values) * scale


def _spread(values: Sequence[float], middle: float) -> float:
    """Return the standard deviation of a list of finite values, or infinity if it is too large for a
    float."""
    scale = max(map(abs, values))
    if scale < LARGE:
        scale = 1.0
    squares = math.fsum((value / scale - middle / scale) ** 2 for value in values)
    return scale * math.sqrt(squares / len(values))


def aggregate(stats: Found, aggregation: str) -> float:
    """Return the value of an aggregation (one of AGGREGATIONS), given a metric's statistics."""
    value = {
        "MIN": stats["min"],
        "MAX": stats["max"],
        "AVG": stats["mean"],
        "LAST": stats["last"]["value"],
        # On overflow, ** would raise OverflowError, but * returns inf.
        "VARIANCE": stats["stddev"] * stats["stddev"],
    }[aggregation]
    return float(value)
