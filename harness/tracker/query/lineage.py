"""Read the series of a forked run, including its parents' points up to the fork step, as in hosted Pluto.

Raw rows, statistics and the audit view contain only a run's own points, because a verdict counts the points
that the run's own processes sent.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.tracker.query import series
from harness.tracker.query.series import Columns

DEPTH = 10
"""The maximum number of runs in a lineage, as in Pluto. Older ancestors are ignored."""


@dataclass(frozen=True)
class Segment:
    """One run's steps in a series: `first` to `last`, or all steps from `first` on if `last` is None."""

    run: int
    first: int
    last: int | None


def segments(db: sqlite3.Connection, run: int) -> list[Segment]:
    """Return the segments of a run's series, starting with the oldest ancestor's segment."""
    parts: list[Segment] = []
    last: int | None = None
    at: int | None = run
    while at is not None and len(parts) < DEPTH:
        row = db.execute("SELECT forked_from, fork_step FROM runs WHERE id = ?", (at,)).fetchone()
        parent, step = (None, None) if row is None else (row[0], row[1])
        parts.insert(0, Segment(at, 0 if step is None else step + 1, last))
        at, last = parent, step if last is None or step is None else min(step, last)
    return parts


def names(db: sqlite3.Connection, run: int) -> list[str]:
    """Return the names of a run's metrics, including its parents' metrics up to the fork."""
    metric_names = set(series.of_run(db, run))
    for one in segments(db, run)[:-1]:
        inherited = set(series.of_run(db, one.run)) - metric_names
        metric_names |= {
            name for name in inherited if len(series.sent(db, one.run, name, one.first, one.last))
        }
    return sorted(metric_names)


def deduplicated(
    db: sqlite3.Connection, run: int, name: str, first: int | None = None, last: int | None = None
) -> Columns:
    """Return a metric's deduplicated points by step, as series.deduplicated does, but including the points of
    the run's parents."""
    parts = segments(db, run)
    if len(parts) == 1:
        return series.deduplicated(db, run, name, first, last)
    merged, older = series.empty(), 0
    for one in parts:
        low = max(one.first, first or 0)
        high = min((end for end in (one.last, last) if end is not None), default=None)
        if high is None or low <= high:
            segment = series.deduplicated(db, one.run, name, low, high)
            merged.append(segment)
            older += segment.older
    return replace(merged, older=older)


def points(
    db: sqlite3.Connection, run: int, name: str | None, limit: int, first: int | None, last: int | None
) -> Sequence[series.Found]:
    """Return the deduplicated points of a run's metrics by step, at most `limit` points per metric."""
    result: list[series.Found] = []
    for one in names(db, run) if name is None else [name]:
        result.extend(series.listed(one, series.sampled(deduplicated(db, run, one, first, last), limit)))
    return result
