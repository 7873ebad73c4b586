"""The table of points for many ranks, with one row per metric, because one column per rank would not fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from harness.judge.case import names
from harness.report.html.curves import Cell, Metric

MOST_COLUMNS = 32
"""Maximum number of ranks in a table of points with one column per rank."""
MOST_ROWS = 300
"""Maximum number of metrics in the table. Metrics with missing points come first."""
MOST_MISSING = 8
"""Maximum number of ranks per metric for which the missing points are shown."""


@dataclass(frozen=True)
class Row:
    """A row of the table: one metric across all ranks."""

    name: str
    ranks: str
    """The ranks that logged the metric, such as "rank 3" or "ranks 0, 1, …"."""
    logged: int
    recorded: int
    missing_count: int
    missing: list[tuple[int, Cell]]
    """The first ranks with missing points."""
    more: int
    """The number of other ranks with missing points."""


@dataclass(frozen=True)
class Wide:
    """The rows of the table of points.

    `others` is the number of omitted metrics, and `others_missing` is how many of their points are missing.
    """

    rows: list[Row]
    others: int
    others_missing: int


def wide(metrics: Iterable[Metric], ranks: int) -> Wide | None:
    """Return the table, or None if there are so few ranks that each gets its own column."""
    if ranks <= MOST_COLUMNS:
        return None
    rest = iter(metrics)
    rows = [_row(metric) for metric in islice(rest, MOST_ROWS)]
    missing_counts = [metric.missing_count for metric in rest]
    return Wide(rows, len(missing_counts), sum(missing_counts))


def _row(metric: Metric) -> Row:
    missing = [(rank, cell) for rank, cell in sorted(metric.cells.items()) if cell.missing]
    return Row(
        metric.name,
        names(metric.cells),
        sum(cell.logged for cell in metric.cells.values()),
        len(metric.recorded),
        metric.missing_count,
        missing[:MOST_MISSING],
        max(0, len(missing) - MOST_MISSING),
    )
