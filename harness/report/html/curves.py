"""For each rank and metric, count the logged points and those that are in the run, and draw the curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harness.evidence.io.reader import Bundle
from harness.evidence.schema.tracker import Point
from harness.judge.points import series
from harness.judge.points.series import Rows, extend, put
from harness.report.html.attempts import truths

MAX_DRAWN = 400
"""Maximum number of points per curve, which is more than a screen can show. For longer curves, the lowest and
highest values in each interval are kept.
"""
MAX_CURVES = 16
"""Maximum number of curves per metric. Ranks with missing points have priority."""
Series = list[tuple[int, float]]


@dataclass
class Cell:
    """One rank's points for one metric. `missing` contains the steps that are not in the run."""

    logged: int = 0
    missing: list[int] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    """The number of rows in each attempt, for a rank that ran more than once.

    A step logged by two attempts counts only once in `logged`.
    """


@dataclass
class Metric:
    """A metric: its points in the run, and one table cell for each rank that logged it."""

    name: str
    cells: dict[int, Cell] = field(default_factory=dict)
    truth: dict[int, series.Series] = field(default_factory=dict)
    recorded: series.Series = field(default_factory=series.Series)

    @property
    def missing_count(self) -> int:
        """Return the number of logged points that are not in the run."""
        return sum(len(cell.missing) for cell in self.cells.values())


def metrics(bundle: Bundle, run_id: str | None) -> dict[str, Metric]:
    """Return all metrics that were logged by a rank or are in the shared run.

    Metrics with missing points come first. Both groups are sorted by name.
    """
    shared = {run.run_id for _, run in bundle.runs() if run_id is not None and run.external_id == run_id}
    recorded: Rows = {}
    for _, part in bundle.point_parts():
        if isinstance(part, Point):
            if part.run_id in shared:
                put(recorded, part.metric, part.step, part.value, part.time_ms)
        elif part[0].run_id in shared:
            extend(recorded, part[1].series())
    by_name = {
        name: Metric(name, recorded=rows.without_times())
        for name, rows in recorded.items()
        if not name.startswith("sys/")
    }
    for truth in truths(bundle)[1]:
        counts = [attempt.counts for attempt in truth.attempts] if len(truth.attempts) > 1 else []
        for name, rows in truth.rows.items():
            metric = by_name.setdefault(name, Metric(name))
            metric.truth[truth.rank] = rows
            is_complete = rows.same_steps(metric.recorded)
            missing_steps = [] if is_complete else [step for step in rows if step not in metric.recorded]
            attempt_counts = [count.get(name, 0) for count in counts]
            metric.cells[truth.rank] = Cell(logged=len(rows), missing=missing_steps, attempts=attempt_counts)
    return dict(sorted(by_name.items(), key=lambda item: (not item[1].missing_count, item[0])))


def steps(numbers: Sequence[int], limit: int = 6) -> str:
    """Format a list of steps, such as "3, 7–9 and 12 more"."""
    runs: list[list[int]] = []
    for step in sorted(set(numbers)):
        if runs and step == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], step]
        else:
            runs.append([step, step])
    texts = [str(a) if a == b else f"{a}–{b}" for a, b in runs]
    suffix = f" and {len(texts) - limit} more" if len(texts) > limit else ""
    return ", ".join(texts[:limit]) + suffix


@dataclass(frozen=True)
class Plot:
    """A metric's curves as SVG paths in a box of `width` × `height`.

    `missing` contains the points that are not in the run.
    """

    name: str
    width: int
    height: int
    recorded: str
    truth: dict[int, str]
    missing: list[tuple[float, float, str]]
    low: str
    high: str
    first: int
    last: int
    not_finite: str
    """A text with the number of values that are NaN or infinite and with their first step, or ""."""


def plot(metric: Metric, width: int = 360, height: int = 120) -> Plot | None:
    """Return the plot, or None if there are no finite values."""
    curves = {rank: _finite(metric.truth[rank].items()) for rank in _drawn(metric)}
    recorded = _finite(metric.recorded.items())
    visible = [rows for rows in (recorded, *curves.values()) if rows]
    if not visible:
        return None
    first, last = min(rows[0][0] for rows in visible), max(rows[-1][0] for rows in visible)
    low = min(value for rows in visible for _, value in rows)
    high = max(value for rows in visible for _, value in rows)
    half = 1 if math.isfinite(high - low) else 2
    """A divisor that keeps the difference between any two values finite."""

    def place(step: int, value: float) -> tuple[float, float]:
        x = (step - first) / (last - first) if last > first else 0.5
        y = (value / half - low / half) / (high / half - low / half) if high > low else 0.5
        return round(6 + x * (width - 12), 1), round(height - 6 - y * (height - 12), 1)

    def path(rows: Series) -> str:
        places = [place(*row) for row in thinned(rows)]
        return "M" + " L".join(f"{x} {y}" for x, y in places) if places else ""

    missing_points = [
        (*place(step, value), f"rank {rank}, step {step}: {value:g} is not in the run")
        for rank, rows in curves.items()
        if not metric.truth[rank].same_steps(metric.recorded)
        for step, value in rows
        if step not in metric.recorded
    ]
    return Plot(
        metric.name,
        width,
        height,
        path(recorded),
        {rank: path(rows) for rank, rows in curves.items()},
        missing_points[:MAX_DRAWN],
        _figure(low, high / half - low / half),
        _figure(high, high / half - low / half),
        first,
        last,
        _not_finite((metric.recorded, *metric.truth.values())),
    )


def _figure(value: float, span: float) -> str:
    """Format a value with at least four digits, and with more if a range of width `span` requires them."""
    texts = (f"{value:.{digits}g}" for digits in range(4, 18))
    return next((text for text in texts if not abs(float(text) - value) > span / 100), repr(value))


def _not_finite(rows: Iterable[series.Series]) -> str:
    """Return a text with the number of values that are NaN or infinite and with their first step, or "".

    The number is the maximum over all series.
    """
    steps_of_rows = [[step for step, value in one.pairs() if not math.isfinite(value)] for one in rows]
    longest = max(steps_of_rows, key=len, default=[])
    if not longest:
        return ""
    first = min(min(one) for one in steps_of_rows if one)
    return f"{len(longest)} non-finite value{'s' if len(longest) > 1 else ''}, from step {first}"


def _drawn(metric: Metric) -> list[int]:
    """Return the ranks, at most MAX_CURVES, whose curves are drawn."""
    misses = {rank for rank, cell in metric.cells.items() if cell.missing}
    first = sorted(metric.truth, key=lambda rank: (rank not in misses, rank))
    return sorted(first[:MAX_CURVES])


def _finite(rows: Iterable[tuple[int, float]]) -> Series:
    """Return the rows with finite values, sorted by step."""
    return sorted((step, value) for step, value in rows if math.isfinite(value))


def thinned(rows: Series) -> Series:
    """Reduce rows to at most MAX_DRAWN by keeping the lowest and highest value in each interval."""
    if len(rows) <= MAX_DRAWN:
        return rows
    size = math.ceil(len(rows) / (MAX_DRAWN // 2))
    result: Series = []
    for start in range(0, len(rows), size):
        stretch = rows[start : start + size]
        extremes = {min(stretch, key=lambda row: row[1]), max(stretch, key=lambda row: row[1])}
        result += sorted(extremes)
    return result
