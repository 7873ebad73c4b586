"""Prepare a training job's losses by step, restarts and checkpoints for the report page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from harness.evidence.io.reader import Bundle
from harness.evidence.schema.training import TrainedCheckpoint
from harness.judge.training.checkpoints import VAL_LOSS
from harness.report.html.attempts import truths
from harness.report.html.curves import Metric, Series, thinned

TRAIN_LOSS = "train/loss"
MAX_DRAWN_VALUE = 1e300
"""Values with a larger magnitude are not drawn, because the width of their range could overflow. Some
trackers store infinity as the largest double."""
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 960, 320, 52, 26, 14
"""The width and height of the picture, and its left, bottom and top margins for labels, in the picture's
units."""


@dataclass(frozen=True)
class Mark:
    """A labelled point, or a line at `x` or `y`. Coordinates are in the picture's units."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Curves:
    """A run's loss curves, in a box of `width` × `height`."""

    width: int
    height: int
    left: int
    bottom: int
    trained: str
    """The SVG path for the training loss."""
    evaluated: str
    """The SVG path for the validation loss."""
    points: list[Mark]
    """The evaluations, positioned at their step and validation loss."""
    resumed: list[Mark]
    """The first step of each attempt after the first one."""
    floor: Mark | None
    """The entropy of the training texts, if known."""
    rows: list[Mark]
    columns: list[Mark]


@dataclass(frozen=True)
class View:
    """The report page's section on a training job."""

    curves: Curves | None
    checkpoints: list[tuple[TrainedCheckpoint, bool]]
    """Pairs of (checkpoint, whether the `best` link points to it)."""
    error: str | None
    """The reason why the checkpoints were not audited, or None if they were."""


def view(bundle: Bundle, facts: Mapping[str, Metric]) -> View | None:
    """Return the report page's section on a training job, or None if the bundle has no training audit.

    `facts` is the result of curves.metrics.
    """
    audit = bundle.training_audit
    if audit is None:
        return None
    target = audit.best.target if audit.best else ""
    checkpoints = [(one, one.name == target) for one in audit.checkpoints]
    floor = audit.entropy.val if audit.entropy else None
    return View(_curves(facts, _resumed(bundle), floor), checkpoints, audit.error)


def _resumed(bundle: Bundle) -> list[int]:
    """Return the first step logged by rank 0 in each attempt after the first one."""
    rank_truth = next((truth for truth in truths(bundle)[1] if truth.rank == 0), None)
    if rank_truth is None:
        return []
    return [
        attempt.steps[TRAIN_LOSS][0] for attempt in rank_truth.attempts[1:] if TRAIN_LOSS in attempt.steps
    ]


def _curves(metrics: Mapping[str, Metric], resumed: list[int], floor: float | None) -> Curves | None:
    trained, evaluated = (_finite(metrics.get(name)) for name in (TRAIN_LOSS, VAL_LOSS))
    points = trained + evaluated
    if not points:
        return None
    last = max(step for step, _ in points)
    values = [value for _, value in points] + ([floor] if floor is not None else [])
    low, high = min(values), max(values)
    margin = (high - low) * 0.05 or max(0.5, abs(high) * 0.05)
    low, high = low - margin, high + margin

    def x(step: float) -> float:
        return round(LEFT + (WIDTH - LEFT - 10) * step / max(last, 1), 1)

    def y(value: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low), 1)

    def path(rows: Series) -> str:
        return "M" + " L".join(f"{x(step)} {y(value)}" for step, value in thinned(rows)) if rows else ""

    return Curves(
        WIDTH,
        HEIGHT,
        LEFT,
        HEIGHT - BOTTOM,
        path(trained),
        path(evaluated),
        [Mark(x(step), y(loss), f"step {step}: validation loss {loss:.6g}") for step, loss in evaluated],
        [Mark(x(step), TOP, f"resumed at step {step}") for step in resumed],
        None if floor is None else Mark(LEFT, y(floor), f"entropy of the texts {floor:.4g}"),
        [Mark(LEFT, y(value), f"{value:g}") for value in _round(low, high)],
        [Mark(x(step), HEIGHT, f"{step:g}") for step in _round(0, last)],
    )


def _finite(metric: Metric | None) -> Series:
    """Return a metric's points in the run, sorted by step. Values that cannot be drawn are omitted."""
    return sorted(row for row in metric.recorded.items() if abs(row[1]) < MAX_DRAWN_VALUE) if metric else []


def _round(low: float, high: float) -> list[float]:
    """Return at most eight round values from `low` to `high`."""
    span = max(high - low, 1e-12)
    power = 10.0 ** math.floor(math.log10(span / 5))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= 7)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [round(number * step, 12) for number in range(first, last + 1)]
