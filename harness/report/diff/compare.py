"""Compare the facts extracted from two bundles. All functions are pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from pydantic import BaseModel, computed_field

from harness.evidence.schema.record import Record, Value
from harness.judge.points import series
from harness.judge.points.compare import same
from harness.report.amounts import ranges
from harness.report.diff.facts import WHOLE, Facts, Series
from harness.report.html.curves import steps

NOISE_SECONDS, NOISE_RATIO = 1.0, 1.25
"""Minimum difference in seconds and minimum ratio of two durations of a stage. The durations count as
different only if both are exceeded."""
TICK = 0.001
"""The resolution of durations, in seconds. No ratio is computed for shorter durations."""
SHOWN = 10
"""Maximum number of differing values that the result lists."""


class Change(Record):
    """A value that differs between the two bundles, or that is in only one of them."""

    what: str
    a: str | None
    b: str | None


class Timing(Record):
    """A stage's duration in seconds in both bundles, A and B.

    `ratio` is B/A, or None if a bundle lacks the stage. `marked` is true if the durations count as different.
    """

    stage: str
    a: float | None
    b: float | None
    ratio: float | None
    marked: bool


class PointCounts(Record):
    """The number of rows logged by one rank for one metric, and how many of them are in the run (`kept`).

    `missing` describes the steps missing from the run, and `only` the steps logged only in this bundle.
    """

    logged: int
    kept: int
    missing: str = ""
    only: str = ""


class PointsChange(Record):
    rank: int
    metric: str
    a: PointCounts | None
    b: PointCounts | None


class ValueChange(Record):
    """Different values for the same rank, metric and step."""

    rank: int
    metric: str
    step: int
    a: Value
    b: Value


class EventChange(Record):
    """A combination of type, reason and object kind that has events in only one bundle, and their number."""

    type: str
    reason: str
    object: str
    a: int
    b: int


class Diff(BaseModel):
    """All differences, with one list per kind of difference. `timings` contains all stages."""

    a: str
    b: str
    verdict: list[Change]
    checks: list[Change]
    causes: list[Change]
    versions: list[Change]
    points: list[PointsChange]
    values_differ: int
    """The number of differing values. `values` contains the first ones.

    A block of rows for which only the digest is known counts as one value.
    """
    values: list[ValueChange]
    any_values: bool
    """Whether `matters` ignores differences between values."""
    job: list[Change]
    timings: list[Timing]
    noise_seconds: float = NOISE_SECONDS
    noise_ratio: float = NOISE_RATIO
    events: list[EventChange]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def matters(self) -> bool:
        """Return whether the verdict, causes, checks, versions or points differ."""
        values = self.values_differ and not self.any_values
        return bool(self.verdict or self.checks or self.causes or self.versions or self.points or values)


def compare(a: Facts, b: Facts, *, any_values: bool = False) -> Diff:
    """Return the differences. Swapping the arguments only swaps `a` and `b` in the result."""
    values = _values(a, b)
    first = list(islice(values, SHOWN))
    return Diff(
        a=a.bundle,
        b=b.bundle,
        verdict=_changes(_outcome(a), _outcome(b)),
        checks=_changes(a.checks, b.checks),
        causes=_changes(a.causes, b.causes),
        versions=_changes(a.versions, b.versions),
        points=list(_points(a, b)),
        values_differ=len(first) + sum(1 for _ in values) + _blocks(a, b),
        values=first,
        any_values=any_values,
        job=_changes(a.job, b.job),
        timings=_timings(a.stages, b.stages),
        events=_events(a, b),
    )


def _outcome(side: Facts) -> dict[str, str]:
    outcome: dict[str, str] = {"verdict": side.verdict.verdict}
    if side.verdict.cause:
        outcome["cause"] = side.verdict.cause
    if side.verdict.ranks:
        outcome["ranks"] = ranges(side.verdict.ranks)
    return outcome


def _changes(a: Mapping[str, str], b: Mapping[str, str]) -> list[Change]:
    return [
        Change(what=name, a=a.get(name), b=b.get(name)) for name in _order(a, b) if a.get(name) != b.get(name)
    ]


def _order(a: Mapping[str, object], b: Mapping[str, object]) -> list[str]:
    """Return the keys of both mappings, in an order that does not depend on the order of the mappings."""
    place: dict[str, int] = {}
    for side in (a, b):
        for number, name in enumerate(side):
            place[name] = min(number, place.get(name, number))
    return sorted(place, key=lambda name: (place[name], name))


def _timings(a: Mapping[str, float], b: Mapping[str, float]) -> list[Timing]:
    timings = []
    for stage in sorted(_order(a, b), key=lambda name: name != WHOLE):
        one, other = a.get(stage), b.get(stage)
        low, high = sorted((one or 0.0, other or 0.0))
        timings.append(
            Timing(
                stage=stage,
                a=one,
                b=other,
                ratio=round(other / one, 3) if one and one >= TICK and other is not None else None,
                marked=high - low > NOISE_SECONDS and high > low * NOISE_RATIO,
            )
        )
    return timings


def _points(a: Facts, b: Facts) -> Iterator[PointsChange]:
    for rank, metric in sorted({*a.series, *b.series}):
        one, other = a.series.get((rank, metric)), b.series.get((rank, metric))
        change = PointsChange(
            rank=rank, metric=metric, a=_point_counts(one, other), b=_point_counts(other, one)
        )
        if change.a != change.b:
            yield change


def _point_counts(own: Series | None, other: Series | None) -> PointCounts | None:
    if own is None:
        return None
    missing = [steps(own.missing)] if own.missing else []
    missing += (
        [f"{own.missing_in_blocks} of the rows recorded only as a digest"] if own.missing_in_blocks else []
    )
    exclusive_steps = (
        [] if other is None or _same_steps(own, other) else sorted(set(own.values) - set(other.values))
    )
    return PointCounts(
        logged=own.logged, kept=own.recorded, missing=", ".join(missing), only=steps(exclusive_steps)
    )


def _values(a: Facts, b: Facts) -> Iterator[ValueChange]:
    for (rank, metric), one in sorted(a.series.items()):
        other = b.series.get((rank, metric))
        if other is not None and _same_values(one, other):
            continue
        for step in sorted(set(one.values) & set(other.values)) if other is not None else ():
            assert other is not None
            left, right = one.values[step], other.values[step]
            if not same(left, right) and (left, right) != (a.mark, b.mark):
                yield ValueChange(rank=rank, metric=metric, step=step, a=left, b=right)


def _same_steps(one: Series, other: Series) -> bool:
    """Return True if a quick comparison shows that both series have the same steps."""
    values, other_values = one.values, other.values
    return (
        isinstance(values, series.Series)
        and isinstance(other_values, series.Series)
        and values.same_steps(other_values)
    )


def _same_values(one: Series, other: Series) -> bool:
    """Return True if a quick comparison shows that both series have the same rows."""
    values, other_values = one.values, other.values
    return (
        isinstance(values, series.Series)
        and isinstance(other_values, series.Series)
        and values.same_as(other_values)
    )


def _blocks(a: Facts, b: Facts) -> int:
    """Return the number of blocks that have the same steps in both series, but different digests."""
    return sum(
        one.digests[block] != b.series[key].digests[block]
        for key, one in a.series.items()
        if key in b.series
        for block in set(one.digests) & set(b.series[key].digests)
    )


def _events(a: Facts, b: Facts) -> list[EventChange]:
    return [
        EventChange(type=key[0], reason=key[1], object=key[2], a=a.events.get(key, 0), b=b.events.get(key, 0))
        for key in sorted({*a.events} ^ {*b.events}, key=lambda key: (key[0] != "Warning", key))
    ]
