"""Recognize points that a tracker or client altered, and how it altered them.

Such points look like another writer's points: a value differs, or a point is missing and the run contains a
point that none of the ranks logged. The pattern across all points shows that they are the same points.
"""

from __future__ import annotations

import math
import re
import struct
import sys
from collections import Counter
from collections.abc import Iterable

from harness.judge.finding import counted
from harness.judge.points.compare import Comparison, Recorded, Wrong, same
from harness.judge.points.ground_truth import Truth
from harness.judge.points.series import NONE, Series

VALUES_ADVICE = (
    "no other process wrote them: find out whether the worker, the client or the tracker converts values, "
    "and log values that it can represent"
)
_DIGITS = range(3, 16)
"""Numbers of significant digits to try when a value may have been written as text and read back."""
MIN_POINTS = 2
"""Minimum number of matching points that prove that a metric was renamed."""


def values(wrong: Iterable[Wrong]) -> list[str]:
    """Return a sentence for each conversion, if conversions explain every wrong value, otherwise []."""
    conversions = [_conversion(one.logged, one.recorded) for one in wrong]
    if not conversions or not all(conversions):
        return []
    return [f"in {counted(count, 'point')}, {text}" for text, count in Counter(conversions).items()]


def points(truths: Iterable[Truth], comparison: Comparison, recorded: Recorded) -> list[str]:
    """Return a sentence for each metric whose missing points are in the run under another name or step."""
    by_rank = {truth.rank: truth for truth in truths}
    sentences = []
    for (rank, metric), steps in comparison.missing.items():
        rows = by_rank[rank].rows.get(metric, NONE)
        name = _other_name(metric, steps, rows, comparison, recorded)
        if name:
            sentences.append(f"the run has these points of {metric!r} of rank {rank} under the name {name!r}")
        elif text := _other_steps(metric, steps, rows, comparison, recorded):
            sentences.append(f"{text} ({metric!r} of rank {rank})")
        elif min(steps) < 0:
            sentences.append(
                f"{metric!r} of rank {rank} has a negative step, and Pluto's ingest refuses requests with "
                "negative steps: a 32-bit counter may have overflowed"
            )
    return sentences


def _conversion(logged: float, recorded: float) -> str:
    """Return a description of the conversion that turns the logged value into the recorded one, or ""."""
    if math.isnan(logged):
        return "NaN became 0" if recorded == 0 else ""
    if math.isinf(logged):
        if abs(recorded) == sys.float_info.max and (recorded > 0) == (logged > 0):
            return "infinity became the largest double"
        return "infinity became NaN" if math.isnan(recorded) else ""
    if not math.isfinite(recorded):
        return ""
    for name, convert in (("32 bits", _single), ("bfloat16", _bfloat16), ("16 bits", _half)):
        if convert(logged) == recorded:
            return f"the value was rounded to {name}"
    digits = next((digits for digits in _DIGITS if float(f"{logged:.{digits}g}") == recorded), 0)
    return f"the value was rounded to {digits} digits" if digits else ""


def _single(value: float) -> float | None:
    return _packed("<f", value)


def _half(value: float) -> float | None:
    return _packed("<e", value)


def _packed(form: str, value: float) -> float | None:
    try:
        return float(struct.unpack(form, struct.pack(form, value))[0])
    except OverflowError:
        return None


def _bfloat16(value: float) -> float | None:
    """Return a value rounded to bfloat16 (the upper 16 bits of a 32-bit float), with ties to even."""
    single = _single(value)
    if single is None:
        return None
    (bits,) = struct.unpack("<I", struct.pack("<f", single))
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0])


def _other_name(
    metric: str, steps: list[int], rows: Series, comparison: Comparison, recorded: Recorded
) -> str | None:
    """Return the name under which the run contains exactly the missing points, or None."""
    for name, foreign in comparison.foreign.items():
        series, steps_there = recorded.shared.get(name, NONE), set(foreign)
        is_plausible = len(steps) >= MIN_POINTS or _words(name) == _words(metric)
        if (
            name != metric
            and is_plausible
            and all(s in steps_there and same(series[s], rows[s]) for s in steps)
        ):
            return name
    return None


def _words(name: str) -> str:
    """Return a metric name without the characters that trackers replace."""
    return re.sub(r"[\W_]+", "", name).casefold()


def _other_steps(
    metric: str, steps: list[int], rows: Series, comparison: Comparison, recorded: Recorded
) -> str | None:
    """Return how a metric's steps in the run differ from the logged steps, or None."""
    series, foreign = recorded.shared.get(metric, NONE), comparison.foreign.get(metric, [])
    if foreign and all(int(float(s)) in foreign and same(series[int(float(s))], rows[s]) for s in steps):
        return "the step was rounded to a number that a double can represent"
    logged, recorded_steps = sorted(rows), sorted(series)
    if foreign and len(logged) == len(recorded_steps) >= MIN_POINTS:
        shift = recorded_steps[0] - logged[0]
        if all(
            b - a == shift and same(rows[a], series[b]) for a, b in zip(logged, recorded_steps, strict=True)
        ):
            return f"every step in the run is shifted by {shift:+d}"
    return None
