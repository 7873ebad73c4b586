"""Downsample a series for display, into buckets that keep their lowest and highest values.

Every extreme value is preserved, regardless of the length of the series.
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

MAX_BUCKETS = 2000
FAR = 300
MAX_FAR = 16
Series = Callable[[sqlite3.Connection, int, str, int | None, int | None], series.Columns]
"""The type of series.deduplicated and lineage.deduplicated, which return a metric's points in a range of
steps, with one point per step."""


@dataclass(frozen=True)
class Bucket:
    """A summary of a series' values at the steps from `first` to `last`.

    `low`, `high` and `mean` are None if no value is finite. `odd` is the number of non-finite values.
    """

    first: int
    last: int
    low: float | None
    high: float | None
    mean: float | None
    count: int
    odd: int


@dataclass(frozen=True)
class Curve:
    """A downsampled series.

    `points` is the number of points before downsampling. `exact` is true if each bucket has a single step.
    `older` is the number of rows that are hidden by a newer row for the same step. `far` describes the points
    omitted because they are far from all others: their number, and their first and last step.
    """

    points: int
    exact: bool
    buckets: list[Bucket]
    older: int = 0
    far: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class End:
    """Describes how a series ends.

    `finite` is the last finite value as (step, value), or None. If the series ends with NaN or infinite
    values, `diverged` is the step of the first value after the last finite one; otherwise, `diverged` is
    None.
    """

    finite: tuple[int, float] | None
    diverged: int | None


def end(db: sqlite3.Connection, run: int, name: str, read_series: Series = series.deduplicated) -> End:
    """Return how a series ends. `read_series` is the function that reads the series."""
    points = read_series(db, run, name, None, None)
    at = len(points) - 1
    while at >= 0 and not math.isfinite(points.values[at]):
        at -= 1
    finite = (points.steps[at], points.values[at]) if at >= 0 else None
    return End(finite, points.steps[at + 1] if at + 1 < len(points) else None)


def last(
    db: sqlite3.Connection, run: int, name: str, read_series: Series = series.deduplicated
) -> tuple[int, float] | None:
    """Return the last finite value of a series as (step, value), or None if it has no finite value.

    `read_series` is the function that reads the series.
    """
    return end(db, run, name, read_series).finite


def overwritten(db: sqlite3.Connection, run: int, name: str) -> tuple[int, int]:
    """Return the number of rows in a series, and how many of them are hidden by another row for the same
    step."""
    steps = series.sent(db, run, name).steps
    return len(steps), len(steps) - len(set(steps))


def clashes(db: sqlite3.Connection, run: int, name: str) -> int:
    """Return the number of steps for which a series has rows with different values.

    A step at which the same row was sent twice does not count.
    """
    points = series.sent(db, run, name)
    if points.ordered():
        return 0
    first: dict[int, float] = {}
    clashing: set[int] = set()
    for step, value in zip(points.steps, points.values, strict=True):
        before = first.setdefault(step, value)
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
    read_series: Series = series.deduplicated,
    by_time: bool = False,
    fit: bool = False,
) -> Curve:
    """Return a series between two steps, in at most `buckets` buckets of equal width.

    `read_series` is the function that reads the series. With `by_time`, all steps are client times in
    milliseconds, including `first` and `until`. With `fit`, a few points that are far from all others are
    omitted.
    """
    columns = read_series(db, run, name, None, None) if by_time else read_series(db, run, name, first, until)
    older = columns.older
    columns = _timed(columns, first, until) if by_time else columns
    far = None
    if fit and (kept_range := fitted(columns.steps)) is not None:
        far_steps = [*columns.steps[: kept_range[0]], *columns.steps[kept_range[1] :]]
        far = len(far_steps), far_steps[0], far_steps[-1]
        columns = columns.part(*kept_range)
    steps, values = columns.steps, columns.values
    if not steps:
        return Curve(0, True, [], older)
    buckets = max(1, min(buckets, MAX_BUCKETS))
    if len(steps) <= buckets:
        exact = [_bucket(step, step, values[at : at + 1]) for at, step in enumerate(steps)]
        return Curve(len(steps), True, exact, older, far)
    begin = steps[0]
    width = -(-(steps[-1] - begin + 1) // buckets)
    result: list[Bucket] = []
    at = 0
    while at < len(steps):  # Each iteration adds one bucket, which starts at the next existing step.
        edge = begin + ((steps[at] - begin) // width + 1) * width
        end = bisect_left(steps, edge, at)
        result.append(_bucket(steps[at], steps[end - 1], values[at:end]))
        at = end
    return Curve(len(steps), width == 1 and not by_time, result, older, far)


def fitted(steps: array[int]) -> tuple[int, int] | None:
    """Return the index range (begin, end) of the steps to draw, or None to draw all of them.

    Steps that are far from all others are omitted. At most a twentieth of the steps are omitted, and only if
    the other steps would otherwise take up less than 1/FAR of the chart's width.
    """
    begin, end = 0, len(steps)
    limit = min(MAX_FAR, max(1, len(steps) // 20))
    omitted = 1
    while omitted <= limit and end - begin - omitted >= 3:
        span, low = min((steps[end - 1 - omitted + at] - steps[begin + at], at) for at in range(omitted + 1))
        if steps[end - 1] - steps[begin] > FAR * max(1, span):
            begin, end, limit, omitted = begin + low, end - omitted + low, limit - omitted, 1
        else:
            omitted += 1
    return (begin, end) if end - begin < len(steps) else None


def _timed(points: series.Columns, first: int, until: int | None) -> series.Columns:
    """Return the points between two client times, ordered by time.

    In the result, the times take the place of the steps.
    """
    if not all(map(operator.le, points.times, islice(points.times, 1, None))):
        points = points.at(sorted(range(len(points)), key=points.times.__getitem__))
    swapped = series.Columns(points.times, points.steps, points.values)
    end = len(swapped) if until is None else bisect_right(swapped.steps, until)
    return swapped.part(bisect_left(swapped.steps, first), end)


def _bucket(first: int, last: int, values: array[float]) -> Bucket:
    odd = 0
    if not all(map(math.isfinite, values)):
        finite = array("d", filter(math.isfinite, values))
        values, odd = finite, len(values) - len(finite)
    if not values:
        return Bucket(first, last, None, None, None, 0, odd)
    low, high = min(values), max(values)
    mean = min(max(series.mean(values), low), high)
    return Bucket(first, last, low, high, mean, len(values), odd)
