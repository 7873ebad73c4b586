"""Compare the ranks' rows with the tracker's after Pluto's own deduplication, in one pass over each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from harness.evidence.reader import Bundle
from harness.evidence.truth_records import TruthBlock
from harness.judge.truth import Rows, Truth
from harness.workers.truth_frames import digest

OWN_METRICS = "sys/"
"""Prefix of metrics that the client logs by itself. No rank's ground truth holds them."""


@dataclass
class Recorded:
    """The tracker's rows as Pluto shows them: the highest client time wins, then the last to arrive."""

    shared: Rows = field(default_factory=dict)
    elsewhere: dict[int, Rows] = field(default_factory=dict)
    """The same rows for every other run."""
    raw: int = 0
    raw_shared: int = 0

    @property
    def distinct(self) -> int:
        return sum(map(len, self.shared.values()))


def read(bundle: Bundle, shared_run: int | None, others: Callable[[int], bool]) -> Recorded:
    """Read tracker/points.jsonl in one pass. `others`: whether a run is of other launches alone."""
    recorded = Recorded()
    times: dict[tuple[int, str], dict[int, int]] = {}
    for _, point in bundle.points():
        recorded.raw += 1
        if point.run_id == shared_run:
            recorded.raw_shared += 1
            rows = recorded.shared
        elif others(point.run_id):
            continue
        else:
            rows = recorded.elsewhere.setdefault(point.run_id, {})
        series = rows.setdefault(point.metric, {})
        when = times.setdefault((point.run_id, point.metric), {})
        if point.step in series and point.time_ms < when[point.step]:
            continue
        series[point.step], when[point.step] = point.value, point.time_ms
    return recorded


@dataclass(frozen=True)
class Wrong:
    rank: int
    metric: str
    step: int
    logged: float
    seen: float


@dataclass
class Comparison:
    """The differences between the ground truth and the run."""

    compared: int = 0
    lost: dict[tuple[int, str], list[int]] = field(default_factory=dict)
    """(rank, metric) → steps that the run lacks."""
    lost_in_blocks: list[tuple[int, TruthBlock, int]] = field(default_factory=list)
    """(rank, block, points that the run has of it)."""
    wrong: list[Wrong] = field(default_factory=list)
    wrong_blocks: list[tuple[int, TruthBlock]] = field(default_factory=list)
    collisions: dict[tuple[str, int], dict[int, float]] = field(default_factory=dict)
    """(metric, step) → rank → value, where ranks differ."""
    undecided: list[tuple[int, TruthBlock]] = field(default_factory=list)
    """Blocks that share a metric and steps with another rank, so that their digest cannot be compared."""
    foreign: dict[str, list[int]] = field(default_factory=dict)
    arrived: dict[int, int] = field(default_factory=dict)
    """Number of each rank's rows that are in the run."""


def same(one: float, other: float) -> bool:
    """Return whether two values are exactly the same double. NaN is the same as NaN."""
    return one == other or (one != one and other != other)  # noqa: PLR0124


def compare(truths: Iterable[Truth], recorded: Recorded) -> Comparison:
    """Compare every rank's rows and blocks with the shared run."""
    truths = list(truths)
    result = Comparison()
    claims: dict[str, list[Truth]] = {}
    for truth in truths:
        for metric in truth.rows:
            claims.setdefault(metric, []).append(truth)
    for truth in truths:
        result.arrived[truth.rank] = 0
        for metric, rows in truth.rows.items():
            _compare_rows(truth, metric, rows, claims[metric], recorded.shared.get(metric, {}), result)
        for block in truth.blocks:
            _compare_block(truth, block, truths, recorded.shared.get(block.metric, {}), result)
    for metric, series in recorded.shared.items():
        if metric.startswith(OWN_METRICS):
            continue
        ranges = [(b.first, b.last) for truth in truths for b in truth.blocks if b.metric == metric]
        owners = [truth.rows[metric] for truth in claims.get(metric, [])]
        strange = [
            step
            for step in series
            if not any(step in rows for rows in owners)
            and not any(first <= step <= last for first, last in ranges)
        ]
        if strange:
            result.foreign[metric] = sorted(strange)
    return result


def _compare_rows(
    truth: Truth,
    metric: str,
    rows: dict[int, float],
    owners: list[Truth],
    series: dict[int, float],
    result: Comparison,
) -> None:
    result.compared += len(rows)
    for step, value in rows.items():
        if len(owners) > 1:
            said = {other.rank: other.rows[metric][step] for other in owners if step in other.rows[metric]}
            if any(not same(value, other) for other in said.values()):
                result.collisions[metric, step] = said
                result.arrived[truth.rank] += step in series
                continue
        if step not in series:
            result.lost.setdefault((truth.rank, metric), []).append(step)
            continue
        result.arrived[truth.rank] += 1
        if not same(value, series[step]):
            result.wrong.append(Wrong(truth.rank, metric, step, value, series[step]))


def _compare_block(
    truth: Truth, block: TruthBlock, truths: list[Truth], series: dict[int, float], result: Comparison
) -> None:
    own = truth.rows.get(block.metric, {})
    if len(truth.attempts) > 1 and any(block.first <= step <= block.last for step in own):
        result.undecided.append((truth.rank, block))  # A row in the run does not say which attempt logged it.
        return
    for other in truths:
        steps = other.rows.get(block.metric, {}) if other is not truth else {}
        overlap = [
            b
            for b in other.blocks
            if b is not block and b.metric == block.metric and b.first <= block.last and block.first <= b.last
        ]
        differs = any((b.first, b.last, b.count, b.sha256) != _key(block) for b in overlap)
        if differs or any(block.first <= step <= block.last for step in steps):
            result.undecided.append((truth.rank, block))
            return
    steps_here = sorted(step for step in series if block.first <= step <= block.last and step not in own)
    result.compared += block.count
    result.arrived[truth.rank] += len(steps_here)
    if len(steps_here) != block.count:
        result.lost_in_blocks.append((truth.rank, block, len(steps_here)))
        return
    if digest((block.metric, step, series[step]) for step in steps_here) != block.sha256:
        result.wrong_blocks.append((truth.rank, block))


def _key(block: TruthBlock) -> tuple[int, int, int, str]:
    return block.first, block.last, block.count, block.sha256


def compact(steps: Iterable[int], limit: int = 8) -> str:
    """Return steps as short text: "step 7", "steps 7, 9–12 (5 points)"."""
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
    more = ", …" if len(ranges) > limit else ""
    return f"steps {', '.join(parts)}{more} ({len(ordered)} points)"
