"""Rows of several metrics, as the tracker keeps them (Series), and a rank's or a sender's rows in columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.evidence.columns import Part
from harness.judge.series import Series

Rows = dict[str, Series]
"""metric → step → value."""
NONE = Series()


def put(rows: Rows, metric: str, step: int, value: float, time_ms: int, mark: int = 0) -> bool:
    """Take one row. Return whether there was one of this metric and step before."""
    series = rows.get(metric)
    if series is None:
        series = rows[metric] = Series()
    return series.put(step, value, time_ms, mark)


def extend(rows: Rows, parts: Iterable[Part], mark: int = 0) -> int:
    """Take rows in columns, by metric. Return how many were for a metric and step that were known."""
    known = 0
    for metric, steps, values, times in parts:
        series = rows.get(metric)
        if series is None:
            series = rows[metric] = Series()
        known += series.extend(steps, values, times, mark)
    return known


def joined(own: Series | None, other: Mapping[int, float]) -> Series:
    """Return the rows of `other`, and over them the own ones."""
    return Series({**other, **(own or {})}.items())
