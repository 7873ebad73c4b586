"""Find points that the tracker or the client altered, and determine how they were altered.

An altered point looks like another writer's point: its value differs, or it is missing and the run contains a
point that none of the ranks logged. If all such points fit one pattern, they were altered.
"""

from __future__ import annotations

import math
import re
import struct
import sys
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable

from harness.evidence.io.reader import Bundle
from harness.evidence.schema.ground_truth import TruthRow
from harness.evidence.schema.tracker import Point
from harness.judge.case import names
from harness.judge.finding import counted
from harness.judge.points import altered_steps
from harness.judge.points.compare import Comparison, Recorded, Wrong, same
from harness.judge.points.ground_truth import Truth
from harness.judge.points.series import NONE, Series

VALUES_ADVICE = (
    "no other process wrote these values: find out whether the worker, the client or the tracker converts "
    "values, and log only values that all of them can represent"
)
EARLIER_ADVICE = (
    "no other process wrote these values: find out whether the last values were sent, and whether the "
    "tracker keeps the first value of a step"
)
_LARGEST_SINGLE, _LARGEST_HALF = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0], 65504.0
"""The largest finite numbers of 32 and of 16 bits."""
_DECIMALS = range(1, 16)
"""Numbers of decimal places to try when values may have been rounded."""
_DIGITS = range(3, 16)
"""Numbers of significant digits to try when a value may have been written as text and read back."""
MIN_SHARING = 2
"""Minimum number of metrics that prove that a tracker stores several metrics under one name."""
MIN_CUT_LENGTH = 63
"""Minimum length of a metric name that a tracker may have shortened."""
MIN_POINTS = 2
"""Minimum number of matching points that prove that a metric was renamed."""


def _visible(name: str) -> str:
    """Return a metric name without spaces and invisible characters."""
    return "".join(one for one in name if not (one.isspace() or unicodedata.category(one) in ("Cf", "Cc")))


_SIMPLIFIED: dict[str, Callable[[str], str]] = {
    "case": str.casefold,
    "its Unicode normalization": lambda name: unicodedata.normalize("NFKC", name),
    "spaces or invisible characters": _visible,
}
"""Maps each kind of difference between metric names that a tracker may ignore to a function that removes this
difference."""


def values(wrong: Iterable[Wrong]) -> list[str]:
    """Return a sentence for each kind of conversion if conversions explain all wrong values, otherwise []."""
    wrong = list(wrong)
    conversions = [_conversion(one.logged, one.recorded) for one in wrong]
    if len(set(conversions)) > 1 and (decimals := _decimals(wrong)):
        return [f"in {counted(len(wrong), 'point')}, the value was rounded to {decimals} decimal places"]
    if not conversions or not all(conversions):
        return []
    return [f"in {counted(count, 'point')}, {text}" for text, count in Counter(conversions).items()]


def arrived_as_logged(bundle: Bundle, runs: Collection[int], wrong: Iterable[Wrong]) -> bool:
    """Return whether these runs also received one of the values as logged, before another value replaced it.

    Another process then wrote the other value, even if it looks like a conversion of the logged one.
    """
    logged = {(one.metric, one.step): one.logged for one in wrong}
    for _, part in bundle.point_parts():
        source = part if isinstance(part, Point) else part[0]
        if source.run_id not in runs:
            continue
        rows = [(part.metric, part.step, part.value, 0)] if isinstance(part, Point) else list(part[1].rows())
        if any((m, s) in logged and same(logged[m, s], value) for m, s, value, _ in rows):
            return True
    return False


def _decimals(wrong: list[Wrong]) -> int:
    """Return the number of decimal places to which all wrong values were rounded, or 0.

    A value that keeps at least three digits is the proof, because any small value can be rounded to 0.
    """
    if not all(math.isfinite(one.logged) and math.isfinite(one.recorded) for one in wrong):
        return 0
    return next(
        (
            places
            for places in _DECIMALS
            if all(round(one.logged, places) == one.recorded for one in wrong)
            and any(abs(one.recorded) >= 10.0 ** (2 - places) for one in wrong)
        ),
        0,
    )


def earlier_values(bundle: Bundle, truths: Iterable[Truth], wrong: Iterable[Wrong]) -> set[Wrong]:
    """Return the wrong values that the same rank logged earlier for the same metric and step."""
    by_rank = {truth.rank: truth for truth in truths}
    suspects: dict[int, dict[tuple[str, int], Wrong]] = {}
    repeated: dict[tuple[int, str], set[int]] = {}
    for one in wrong:
        key = one.rank, one.metric
        if key not in repeated:
            overwrites = by_rank[one.rank].rows.get(one.metric, NONE).overwrites
            repeated[key] = {step for steps in overwrites.values() for step in steps}
        if one.step in repeated[key]:
            suspects.setdefault(one.rank, {})[one.metric, one.step] = one
    earlier = set[Wrong]()
    for rank, by_point in suspects.items():
        for _, line in bundle.truth(rank, by_rank[rank].suffix):
            if isinstance(line, TruthRow) and (suspect := by_point.get((line.metric, line.step))) is not None:
                earlier |= {suspect} if same(line.value, suspect.recorded) else set()
    return earlier


def points(bundle: Bundle, truths: Iterable[Truth], comparison: Comparison, recorded: Recorded) -> list[str]:
    """Return a sentence for each metric whose missing points are in the run under another name or step."""
    by_rank = {truth.rank: truth for truth in truths}
    logged = {metric for truth in by_rank.values() for metric in truth.metrics}
    similar, shared = _similar_names(logged), _shared_names(logged, comparison)
    sentences = []
    for (rank, metric), steps in comparison.missing.items():
        rows = by_rank[rank].rows.get(metric, NONE)
        name = _other_name(metric, steps, rows, comparison, recorded)
        if name:
            difference = _difference(metric, name)
            new_name = f"{name!a}, which differs only in {difference}" if difference else repr(name)
            sentences.append(
                f"the run has these points of {metric!r} of rank {rank} under the name {new_name}"
            )
        elif metric not in recorded.shared and (name := _merged_with(metric, similar, recorded)):
            sentences.append(
                f"the run has no metric {metric!r} of rank {rank}, but has {name!a}, which differs only in "
                f"{_difference(metric, name)}: the tracker may store both under one name"
            )
        elif name := next(
            (name for name in shared.get(metric, []) if set(steps) <= set(comparison.foreign[name])), None
        ):
            sentences.append(
                f"the run has no metric {_short(metric)} of rank {rank}, but has {_short(name)}: the tracker "
                "may store several metrics under this name"
            )
        elif text := altered_steps.conversion(
            steps, rows, recorded.shared.get(metric, NONE), comparison.foreign.get(metric, [])
        ):
            sentences.append(f"{text} ({metric!r} of rank {rank})")
        elif min(steps) < 0:
            sentences.append(
                f"{metric!r} of rank {rank} has a negative step, and Pluto's ingest refuses requests with "
                "negative steps: a 32-bit counter may have overflowed"
            )
    if not sentences and (
        text := _only_finite(by_rank, comparison)
        or altered_steps.dropped(bundle, by_rank.values(), comparison)
    ):
        sentences.append(text)
    return sentences


def _only_finite(by_rank: dict[int, Truth], comparison: Comparison) -> str:
    """Return a sentence if the missing points are exactly those that are NaN or infinite, otherwise ""."""
    ranks = {rank for rank, _ in comparison.missing}
    if comparison.missing_in_blocks or not ranks:
        return ""
    for truth in map(by_rank.__getitem__, sorted(ranks)):
        if not any(math.isfinite(value) for rows in truth.rows.values() for value in rows.values()):
            return ""
        for metric, rows in truth.rows.items():
            not_finite = {step for step, value in rows.items() if not math.isfinite(value)}
            if not_finite != set(comparison.missing.get((truth.rank, metric), ())):
                return ""
    return (
        "all missing values are NaN or infinite, and the run has every finite value of "
        f"{names(ranks)}: the client "
        "or the tracker omits values that are not finite"
    )


def _conversion(logged: float, recorded: float) -> str:
    """Return a description of the conversion that turns the logged value into the recorded one, or ""."""
    if math.isnan(logged):
        return "NaN became 0" if recorded == 0 else ""
    if math.isinf(logged) or math.isinf(recorded):
        return _infinity(logged, recorded)
    if not math.isfinite(recorded):
        return ""
    for name, convert in (("32 bits", _single), ("bfloat16", _bfloat16), ("16 bits", _half)):
        if convert(logged) == recorded:
            return f"the value was rounded to {name}"
    digits = next((digits for digits in _DIGITS if float(f"{logged:.{digits}g}") == recorded), 0)
    return f"the value was rounded to {digits} digits" if digits else ""


def _infinity(logged: float, recorded: float) -> str:
    """Return a description of the conversion from or to an infinite value, or ""."""
    if math.isnan(recorded):
        return "infinity became NaN"
    if (recorded > 0) != (logged > 0):
        return ""
    largest = {
        sys.float_info.max: "double",
        _LARGEST_SINGLE: "number of 32 bits",
        _LARGEST_HALF: "number of 16 bits",
    }
    if math.isinf(logged):
        kind = largest.get(abs(recorded), "")
        return f"infinity became the largest {kind}" if kind else ""
    if abs(logged) <= _LARGEST_HALF:
        return ""
    bits = 32 if abs(logged) > _LARGEST_SINGLE else 16
    return f"the value exceeds the range of {bits} bits and became infinite"


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
    """Return the name under which the run contains all the missing points, or None."""
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


def _difference(name: str, other: str) -> str:
    """Return the kind of difference between two metric names if a tracker may ignore it, otherwise ""."""
    return next((kind for kind, simplify in _SIMPLIFIED.items() if simplify(name) == simplify(other)), "")


def _similar_names(metrics: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    """Map each (kind of difference, simplified name) to all metric names that have this simplified form."""
    similar: dict[tuple[str, str], list[str]] = {}
    for metric in sorted(set(metrics)):
        for kind, simplify in _SIMPLIFIED.items():
            similar.setdefault((kind, simplify(metric)), []).append(metric)
    return similar


def _merged_with(metric: str, similar: dict[tuple[str, str], list[str]], recorded: Recorded) -> str | None:
    """Return another logged metric in the run whose name a tracker may treat as equal, or None."""
    others = [name for kind, simplify in _SIMPLIFIED.items() for name in similar[kind, simplify(metric)]]
    return next((name for name in others if name != metric and name in recorded.shared), None)


def _shared_names(logged: set[str], comparison: Comparison) -> dict[str, list[str]]:
    """Map each logged metric to the names in the run under which a tracker may store it and another metric.

    Such names differ from the logged ones only in characters that trackers replace, or are their beginning.
    """
    ordered = sorted(logged)
    by_words: dict[str, list[str]] = {}
    for metric in ordered:
        by_words.setdefault(_words(metric), []).append(metric)
    shared: dict[str, list[str]] = {}
    for name in comparison.foreign:
        if name in logged:
            continue
        group = by_words.get(_words(name), [])
        if len(group) < MIN_SHARING and len(name) >= MIN_CUT_LENGTH:
            group = ordered[bisect_left(ordered, name) : bisect_left(ordered, name + chr(sys.maxunicode))]
        for metric in group if len(group) >= MIN_SHARING else ():
            shared.setdefault(metric, []).append(name)
    return shared


def _short(name: str) -> str:
    """Return a metric name in quotes. Only the end of a long name is shown."""
    return repr(name) if len(name) <= 80 else f"'…{repr(name)[-79:]}"


def _words(name: str) -> str:
    """Return a metric name without the characters that trackers replace."""
    return re.sub(r"[\W_]+", "", name).casefold()
