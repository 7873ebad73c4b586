"""Curves for the eye: a series in buckets with the lowest and the highest value of each.

No extreme is dropped, whatever the length.
"""

from __future__ import annotations

import math
import operator
import sqlite3
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from harness.tracker.query import series

MOST_BUCKETS = 2000
Series = Callable[[sqlite3.Connection, int, str, int | None, int | None], series.Columns]
"""Reads the deduplicated points of a metric between two steps: a run's own, or a fork's with its parents'."""


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


def last(db: sqlite3.Connection, run: int, name: str, of: Series = series.shown) -> tuple[int, float] | None:
    """Return (step, value) of the last finite value of a series, which `of` reads, or None."""
    found = of(db, run, name, None, None)
    for at in range(len(found) - 1, -1, -1):
        if math.isfinite(found.values[at]):
            return found.steps[at], found.values[at]
    return None


def extent(
    db: sqlite3.Connection, run: int, name: str, first: int = 0, until: int | None = None
) -> tuple[int, int, int]:
    """Return the first step, the last one and the number of rows of a series. (0, 0, 0): no rows."""
    steps = series.sent(db, run, name, first, until).steps
    return (min(steps), max(steps), len(steps)) if steps else (0, 0, 0)


def overwritten(db: sqlite3.Connection, run: int, name: str) -> tuple[int, int]:
    """Return how many rows a series has, and how many of them are hidden by another one of the same step."""
    steps = series.sent(db, run, name).steps
    return len(steps), len(steps) - len(set(steps))


def clashes(db: sqlite3.Connection, run: int, name: str) -> int:
    """Return how many steps of a series have rows with different values. A row that came twice is none."""
    found = series.sent(db, run, name)
    if found.ordered():
        return 0
    seen: dict[int, float] = {}
    clashing: set[int] = set()
    for step, value in zip(found.steps, found.values, strict=True):
        before = seen.setdefault(step, value)
        if before != value and not (math.isnan(before) and math.isnan(value)):
            clashing.add(step)
    return len(clashing)


def curve(
    db: sqlite3.Connection,
    run: int,
    name: str,
    buckets: int,
    first: int = 0,
    until: int | None = None,
    of: Series = series.shown,
    by_time: bool = False,
) -> Curve:
    """Return the series between two steps, in at most `buckets` buckets of equal width. `of` reads it.

    `by_time`: the clients' times in milliseconds take the place of steps, also in `first` and `until`.
    """
    found = (
        _timed(of(db, run, name, None, None), first, until) if by_time else of(db, run, name, first, until)
    )
    steps, values = found.steps, found.values
    if not steps:
        return Curve(0, True, [])
    buckets = max(1, min(buckets, MOST_BUCKETS))
    if len(steps) <= buckets:
        exact = [_bucket(step, step, values[at : at + 1]) for at, step in enumerate(steps)]
        return Curve(len(steps), True, exact)
    begin = steps[0]
    width = -(-(steps[-1] - begin + 1) // buckets)
    made: list[Bucket] = []
    at = 0
    while at < len(steps):  # each turn takes the bucket of the next step that there is
        edge = begin + ((steps[at] - begin) // width + 1) * width
        end = bisect_left(steps, edge, at)
        made.append(_bucket(steps[at], steps[end - 1], values[at:end]))
        at = end
    return Curve(len(steps), width == 1 and not by_time, made)


def _timed(points: series.Columns, first: int, until: int | None) -> series.Columns:
    """Return the points between two times, in the order of time, with the times in the place of steps."""
    if not all(map(operator.le, points.times, islice(points.times, 1, None))):
        points = points.at(sorted(range(len(points)), key=points.times.__getitem__))
    at = series.Columns(points.times, points.steps, points.values)
    end = len(at) if until is None else bisect_right(at.steps, until)
    return at.part(bisect_left(at.steps, first), end)


def _bucket(first: int, until: int, values: array[float]) -> Bucket:
    odd = 0
    if not all(map(math.isfinite, values)):
        finite = array("d", filter(math.isfinite, values))
        values, odd = finite, len(values) - len(finite)
    if not values:
        return Bucket(first, until, None, None, None, 0, odd)
    low, high = min(values), max(values)
    mean = min(max(series.mean(values), low), high)
    return Bucket(first, until, low, high, mean, len(values), odd)
