"""Compare the ranks' points with the tracker's points after Pluto's deduplication, in one pass."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from harness.evidence.io.reader import Bundle
from harness.evidence.schema.ground_truth import TruthBlock
from harness.evidence.schema.tracker import Point
from harness.judge.points.ground_truth import Truth
from harness.judge.points.series import NONE, Rows, Series, extend, put
from harness.workers.ground_truth.truth_frames import block_digest, digest

OWN_METRICS = "sys/"
"""Prefix for system metrics. The client itself logs them, so they are not in the ranks' ground truth."""


@dataclass
class Recorded:
    """The tracker's points after Pluto's deduplication.

    If there are several points for one metric and step, the one with the latest client time counts. If times
    are equal, the last one to arrive counts.
    """

    shared: Rows = field(default_factory=dict)
    elsewhere: dict[int, Rows] = field(default_factory=dict)
    """The points of every run other than the shared one, keyed by run id."""
    raw: int = 0
    raw_shared: int = 0

    @property
    def distinct(self) -> int:
        return sum(map(len, self.shared.values()))


def read(bundle: Bundle, shared_run: int | None, is_foreign: Callable[[int], bool]) -> Recorded:
    """Return the points in tracker/points.jsonl. The file is read only once.

    Runs for which `is_foreign(run_id)` is true are omitted, because only other launches attached to them.
    """
    recorded = Recorded()
    for _, part in bundle.point_parts():
        run, count = (part.run_id, 1) if isinstance(part, Point) else (part[0].run_id, len(part[1]))
        recorded.raw += count
        if run == shared_run:
            recorded.raw_shared += count
            rows = recorded.shared
        elif is_foreign(run):
            continue
        else:
            rows = recorded.elsewhere.setdefault(run, {})
        if isinstance(part, Point):
            put(rows, part.metric, part.step, part.value, part.time_ms)
        else:
            extend(rows, part[1].series())
    for rows in (recorded.shared, *recorded.elsewhere.values()):
        for series in rows.values():
            series.without_times()
    return recorded


@dataclass(frozen=True)
class Wrong:
    rank: int
    metric: str
    step: int
    logged: float
    recorded: float


@dataclass
class Comparison:
    """The differences between the ground truth and the run."""

    compared: int = 0
    missing: dict[tuple[int, str], list[int]] = field(default_factory=dict)
    """Steps missing from the run, per (rank, metric)."""
    missing_in_blocks: list[tuple[int, TruthBlock, int]] = field(default_factory=list)
    """Blocks with missing points, as (rank, block, number of the block's points that are in the run)."""
    wrong: list[Wrong] = field(default_factory=list)
    wrong_blocks: list[tuple[int, TruthBlock]] = field(default_factory=list)
    collisions: dict[tuple[str, int], dict[int, float]] = field(default_factory=dict)
    """Maps each (metric, step) at which ranks logged different values to the value from each rank."""
    undecided: list[tuple[int, TruthBlock]] = field(default_factory=list)
    """Blocks whose digest cannot be compared, because the run may contain other points at the same steps."""
    foreign: dict[str, list[int]] = field(default_factory=dict)
    arrived: dict[int, int] = field(default_factory=dict)
    """The number of each rank's points that are in the run."""


def same(one: float, other: float) -> bool:
    """Return whether two values are the same double. NaN equals NaN, and 0.0 equals -0.0."""
    return one == other or (one != one and other != other)  # noqa: PLR0124


def compare(truths: Iterable[Truth], recorded: Recorded) -> Comparison:
    """Compare every rank's points and blocks with the shared run."""
    truths = list(truths)
    result = Comparison()
    claims: dict[str, list[Truth]] = {}
    blocks: dict[str, list[Truth]] = {}
    for truth in truths:
        for metric in truth.rows:
            claims.setdefault(metric, []).append(truth)
        for metric in dict.fromkeys(block.metric for block in truth.blocks):
            blocks.setdefault(metric, []).append(truth)
    ascending = cache(lambda metric: sorted(recorded.shared.get(metric, NONE)))
    disputed = {metric: _disputed(owners, metric) for metric, owners in claims.items() if len(owners) > 1}
    for truth in truths:
        result.arrived[truth.rank] = 0
        by_digest = truth.sorted_metrics
        for metric, rows in truth.rows.items():
            if metric in by_digest:
                # The metric's blocks also contain these points, unless later points replaced them.
                continue
            owners, steps = claims[metric], disputed.get(metric, set())
            _compare_rows(truth, metric, rows, owners, steps, recorded.shared.get(metric, NONE), result)
        for block in truth.blocks:
            holders = {one.rank: one for one in blocks[block.metric] + claims.get(block.metric, [])}
            all_steps = ascending(block.metric)
            block_steps = all_steps[bisect_left(all_steps, block.first) : bisect_right(all_steps, block.last)]
            series = recorded.shared.get(block.metric, NONE)
            _compare_block(truth, block, holders.values(), block_steps, series, result)
    for metric, series in recorded.shared.items():
        if metric.startswith(OWN_METRICS):
            continue
        ranges = [
            (b.first, b.last) for truth in blocks.get(metric, []) for b in truth.blocks if b.metric == metric
        ]
        foreign_steps = _unclaimed(series, [truth.rows[metric] for truth in claims.get(metric, [])], ranges)
        if foreign_steps:
            result.foreign[metric] = sorted(foreign_steps)
    return result


def _disputed(owners: list[Truth], metric: str) -> set[int]:
    """Return the steps at which ranks logged different values for the metric."""
    all_rows = [truth.rows[metric] for truth in owners]
    if all(rows.same_as(all_rows[0]) for rows in all_rows[1:]):
        return set()
    first_values: dict[int, float] = {}
    return {
        step
        for rows in all_rows
        for step, value in rows.items()
        if not same(first_values.setdefault(step, value), value)
    }


def _unclaimed(series: Series, owners: list[Series], ranges: list[tuple[int, int]]) -> list[int]:
    """Return the steps of a metric that the run contains, but no rank logged, in the run's order."""
    if any(rows.same_steps(series) for rows in owners):
        return []
    firsts, lasts = list[int](), list[int]()
    for first, last in sorted(ranges):
        if lasts and first <= lasts[-1]:
            lasts[-1] = max(lasts[-1], last)
        else:
            firsts.append(first)
            lasts.append(last)

    def in_a_block(step: int) -> bool:
        at = bisect_right(firsts, step) - 1
        return at >= 0 and step <= lasts[at]

    return [step for step in series if not in_a_block(step) and not any(step in rows for rows in owners)]


def _compare_rows(
    truth: Truth,
    metric: str,
    rows: Series,
    owners: list[Truth],
    disputed: set[int],
    series: Series,
    result: Comparison,
) -> None:
    result.compared += len(rows)
    if not disputed and rows.same_as(series):
        result.arrived[truth.rank] += len(rows)
        return
    superseded = truth.superseded.get(metric, set())
    # If the rank itself repeated a superseded step, the run may contain the rank's first value for it.
    repeated = superseded & {step for steps in rows.overwrites.values() for step in steps}
    for step, value in rows.items():
        if step in disputed:
            values = {other.rank: other.rows[metric][step] for other in owners if step in other.rows[metric]}
            result.collisions[metric, step] = values
            result.arrived[truth.rank] += step in series
            continue
        if step not in series:
            if step in superseded:
                continue
            result.missing.setdefault((truth.rank, metric), []).append(step)
            continue
        result.arrived[truth.rank] += 1
        if not same(value, series[step]) and step not in repeated:
            result.wrong.append(Wrong(truth.rank, metric, step, value, series[step]))


def _compare_block(
    truth: Truth,
    block: TruthBlock,
    holders: Iterable[Truth],
    block_steps: list[int],
    series: Series,
    result: Comparison,
) -> None:
    """Compare a block with the run.

    `holders` contains the ground truth of each rank that logged the block's metric. `series` contains the
    metric's points in the run, and `block_steps` contains the steps of `series` in the block's range.
    """
    own = NONE if block.kept else truth.rows.get(block.metric, NONE)
    if len(block_steps) == block.count and fits(block, block_steps, series):
        new = sum(step not in own for step in block_steps)
        result.compared += new
        result.arrived[truth.rank] += new
        return
    has_several_attempts = len(truth.attempts) > 1
    if has_several_attempts and (block.kept or any(block.first <= step <= block.last for step in own)):
        result.undecided.append((truth.rank, block))  # The run does not show which attempt logged a point.
        return
    if block.ordered is False or block.count > block.last - block.first + 1:
        # Some of the block's points replaced others at the same step, but the run does not show which ones.
        result.undecided.append((truth.rank, block))
        return
    for other in holders:
        steps = other.rows.get(block.metric, NONE) if other is not truth else NONE
        overlapping = [
            b
            for b in other.blocks
            if b is not block and b.metric == block.metric and b.first <= block.last and block.first <= b.last
        ]
        differs = any((b.first, b.last, b.count, b.sha256) != _key(block) for b in overlapping)
        if differs or any(block.first <= step <= block.last for step in steps):
            result.undecided.append((truth.rank, block))
            return
    block_steps = [step for step in block_steps if step not in own]
    result.compared += block.count
    result.arrived[truth.rank] += len(block_steps)
    if len(block_steps) != block.count:
        result.missing_in_blocks.append((truth.rank, block, len(block_steps)))
        return
    if not fits(block, block_steps, series):
        result.wrong_blocks.append((truth.rank, block))


def fits(block: TruthBlock, steps: Iterable[int], series: Mapping[int, float]) -> bool:
    """Return whether a block's digest matches these points.

    In bundles from older versions of the harness, 0.0 and -0.0 lead to different block digests.
    """
    rows = [(block.metric, step, series[step]) for step in steps]
    return block.sha256 in (block_digest(rows), digest(rows))


def _key(block: TruthBlock) -> tuple[int, int, int, str]:
    return block.first, block.last, block.count, block.sha256


def compact(steps: Iterable[int], limit: int = 8) -> str:
    """Format steps compactly, such as "step 7" or "steps 7, 9–12 (5 points)"."""
    ordered = sorted(set(steps))
    ranges: list[tuple[int, int]] = []
    for step in ordered:
        if ranges and step == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], step
        else:
            ranges.append((step, step))
    parts = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}–{b}" for a, b in ranges[:limit]]
    if len(ordered) == 1:
        return f"step {parts[0]}"
    suffix = ", …" if len(ranges) > limit else ""
    return f"steps {', '.join(parts)}{suffix} ({len(ordered)} points)"
