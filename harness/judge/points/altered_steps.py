"""Find out whether the tracker or the client converts steps, or drops points by a rule about their steps."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import pairwise

from harness.evidence.io.reader import Bundle
from harness.evidence.schema.ground_truth import TruthRow
from harness.judge.case import names
from harness.judge.points.compare import Comparison, same
from harness.judge.points.ground_truth import Truth
from harness.judge.points.series import Series

MIN_POINTS = 2
"""Minimum number of matching points that prove that all steps of a metric were shifted."""
MIN_VALUES = 3
"""Minimum number of different values that prove that a metric's points are at other steps."""
MIN_SAMPLES = 4
"""Minimum number of points at equal distances that prove that a metric was sampled."""
MAX_FACTOR = 4096
"""Maximum number of factors to try when several steps may have been counted as one."""
_CONVERSIONS: dict[str, Callable[[int], int]] = {
    "rounded to a number that a double can represent": lambda step: int(float(step)),
    "reduced to 32 bits": lambda step: step & 0xFFFFFFFF,
    "reduced to a signed 32-bit number": lambda step: (step + (1 << 31) & 0xFFFFFFFF) - (1 << 31),
}


def conversion(steps: list[int], rows: Series, series: Series, foreign: list[int]) -> str:
    """Return how a metric's steps in the run differ from the logged steps, or "".

    `steps` are the missing steps, `rows` the logged points, `series` the run's points of this metric, and
    `foreign` the steps of the run's points that no rank logged.
    """
    there = set(foreign)
    for text, convert in _CONVERSIONS.items():
        if there and all(convert(s) in there and same(series[convert(s)], rows[s]) for s in steps):
            return f"the step was {text}"
    logged, recorded = sorted(rows), sorted(series)
    if foreign and len(logged) == len(recorded) >= MIN_POINTS:
        same_values = all(same(rows[a], series[b]) for a, b in zip(logged, recorded, strict=True))
        shift = recorded[0] - logged[0]
        if same_values and all(b - a == shift for a, b in zip(logged, recorded, strict=True)):
            return f"every step in the run is shifted by {shift:+d}"
    if len({value for value in series.values() if not math.isnan(value)}) < MIN_VALUES:
        return ""
    if factor := _divided(logged, recorded, rows, series):
        return f"the run counts {factor} steps as one"
    if (
        foreign
        and len(logged) == len(recorded)
        and all(same(rows[a], series[b]) for a, b in zip(logged, recorded, strict=True))
    ):
        first = next((a, b) for a, b in zip(logged, recorded, strict=True) if a != b)
        return (
            "the run has the values of the metric in the same order at other steps: "
            f"step {first[0]} became {first[1]}"
        )
    return ""


def _divided(logged: list[int], recorded: list[int], rows: Series, series: Series) -> int:
    """Return the number of steps that were counted as one, or 0.

    The run then has the last value of each group of steps.
    """
    if logged[0] < 0 or recorded[-1] < 1 or recorded[-1] >= logged[-1]:
        return 0
    if not same(rows[logged[-1]], series[recorded[-1]]):
        return 0
    first, last = logged[-1] // (recorded[-1] + 1) + 1, logged[-1] // recorded[-1]
    for factor in range(max(first, 2), min(last, first + MAX_FACTOR) + 1):
        ends = (logged[bisect_left(logged, (step + 1) * factor) - 1] for step in recorded)
        are_last = all(
            end // factor == step and same(rows[end], series[step])
            for step, end in zip(recorded, ends, strict=True)
        )
        if are_last and len({step // factor for step in logged}) == len(recorded):
            return factor
    return 0


def dropped(bundle: Bundle, truths: Iterable[Truth], comparison: Comparison) -> str:
    """Return a sentence if one rule explains which points of all ranks are missing, otherwise ""."""
    ranks = {rank for rank, _ in comparison.missing}
    if comparison.missing_in_blocks or not ranks:
        return ""
    involved = [truth for truth in truths if truth.rank in ranks]
    if all(_missing(truth, comparison) == _beside_not_finite(truth) for truth in involved):
        return (
            f"every missing point of {names(ranks)} has a step at which the rank also logged NaN or "
            "infinity: the client or the tracker may reject all values of such a step"
        )
    if all(_missing(truth, comparison) == _behind(bundle, truth) for truth in involved):
        return (
            f"every missing point of {names(ranks)} has a lower step than one that the rank had logged "
            "before it, and no other point is missing: the client or the tracker may drop such points"
        )
    intervals = {_interval(truth, comparison) for truth in involved}
    if len(intervals) == 1 and (interval := intervals.pop()):
        return (
            f"of each metric that lacks points, the run has exactly one of every {interval} points: the "
            "client or the tracker may sample points"
        )
    return ""


def _interval(truth: Truth, comparison: Comparison) -> int:
    """Return n if the run has every nth point of each metric with missing points of this rank, or 0."""
    intervals = set[int]()
    for (rank, metric), steps in comparison.missing.items():
        if rank == truth.rank:
            missing, logged = set(steps), sorted(truth.rows[metric])
            places = [place for place, step in enumerate(logged) if step not in missing]
            if len(places) < MIN_SAMPLES or places[0] >= places[1] - places[0]:
                return 0
            intervals |= {after - before for before, after in pairwise(places)}
            intervals |= {0} if len(logged) - places[-1] > places[1] - places[0] else set()
    return intervals.pop() if len(intervals) == 1 else 0


def _missing(truth: Truth, comparison: Comparison) -> set[tuple[str, int]]:
    return {
        (metric, step)
        for (rank, metric), steps in comparison.missing.items()
        if rank == truth.rank
        for step in steps
    }


def _beside_not_finite(truth: Truth) -> set[tuple[str, int]]:
    """Return the metric and step of each point of the rank at a step with a value that is not finite.

    Return an empty set if each step has such a value, because these values then prove nothing.
    """
    steps = {step for rows in truth.rows.values() for step, value in rows.items() if not math.isfinite(value)}
    points = {(metric, step) for metric, rows in truth.rows.items() for step in rows}
    beside = {(metric, step) for metric, step in points if step in steps}
    return beside if beside != points else set()


def _behind(bundle: Bundle, truth: Truth) -> set[tuple[str, int]]:
    """Return the metric and step of each point that was logged only after a point with a higher step.

    A point that was also logged in order is not included.
    """
    behind, in_order = set[tuple[str, int]](), set[tuple[str, int]]()
    newest: int | None = None
    for _, line in bundle.truth(truth.rank, truth.suffix):
        if isinstance(line, TruthRow):
            late = newest is not None and line.step < newest
            (behind if late else in_order).add((line.metric, line.step))
            newest = line.step if newest is None else max(newest, line.step)
    return behind - in_order
