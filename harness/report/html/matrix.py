"""The table of points for many ranks: a row for each metric. A column for each rank fits no screen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from harness.judge.case import names
from harness.report.html.curves import Cell, Metric

MOST_COLUMNS = 32
"""With more ranks than these, there is no column for each."""
MOST_ROWS = 300
"""Metrics that are shown. Those that miss points come first."""
MOST_MISSING = 8
"""Ranks of one metric whose missing points are shown."""


@dataclass(frozen=True)
class Row:
    """One metric over all ranks."""

    name: str
    ranks: str
    """Who logged it: "rank 3", "ranks 0, 1, …"."""
    logged: int
    recorded: int
    lost: int
    missing: list[tuple[int, Cell]]
    """The first ranks of whose points some are missing."""
    more: int
    """How many further ranks miss points."""


@dataclass(frozen=True)
class Wide:
    """The rows that are shown, and what the others are."""

    rows: list[Row]
    others: int
    others_lost: int


def wide(metrics: Iterable[Metric], ranks: int) -> Wide | None:
    """Return the table, or None where each rank can have a column."""
    if ranks <= MOST_COLUMNS:
        return None
    rest = iter(metrics)
    rows = [_row(metric) for metric in islice(rest, MOST_ROWS)]
    lost = [metric.lost for metric in rest]
    return Wide(rows, len(lost), sum(lost))


def _row(metric: Metric) -> Row:
    missing = [(rank, cell) for rank, cell in sorted(metric.cells.items()) if cell.lost]
    return Row(
        metric.name,
        names(metric.cells),
        sum(cell.logged for cell in metric.cells.values()),
        len(metric.recorded),
        metric.lost,
        missing[:MOST_MISSING],
        max(0, len(missing) - MOST_MISSING),
    )
