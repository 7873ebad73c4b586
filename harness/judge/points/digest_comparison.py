"""Compare the digests from injected recorders with the run's points in the tracker.

A matching digest proves that exactly these points arrived. If several processes logged the same metric, a
point belongs to a process if its time is between the times of the process's first and last points. A
restarted rank overwrites the points of its previous process, but the tracker's raw rows still contain both.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.evidence.schema.columns import Part
from harness.judge.finding import counted
from harness.judge.points.digest_records import Claim, Group, Leaf, Record
from harness.judge.points.series import ascend
from harness.workers.recorder import digest_lines, point_digests
from harness.workers.recorder.point_digests import BLOCK_STEPS, MASK

OWN_METRICS = "sys/"
MAX_RANGES = 4


@dataclass
class Rows:
    """The raw rows of one metric, in arrival order."""

    metric: str
    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    times: array[int] = field(default_factory=lambda: array("q"))

    def extend(self, steps: array[int], values: array[float], times: array[int]) -> None:
        self.steps.extend(steps)
        self.values.extend(values)
        self.times.extend(times)

    def within(self, began_ms: int, ended_ms: int) -> Rows:
        """Return the rows whose times are in the range from `began_ms` to `ended_ms`, inclusive."""
        if not self.times or (began_ms <= min(self.times) and max(self.times) <= ended_ms):
            return self
        at = [place for place, time in enumerate(self.times) if began_ms <= time <= ended_ms]
        return self._at(at)

    def _at(self, places: Sequence[int]) -> Rows:
        return Rows(
            self.metric,
            array("q", map(self.steps.__getitem__, places)),
            array("d", map(self.values.__getitem__, places)),
            array("q", map(self.times.__getitem__, places)),
        )

    def of_blocks(self, blocks: Container[int]) -> dict[int, Rows]:
        """Map each of the given blocks of steps to its rows. Blocks without rows are omitted."""
        places: dict[int, list[int]] = {}
        for place, step in enumerate(self.steps):
            if (block := step // BLOCK_STEPS) in blocks:
                places.setdefault(block, []).append(place)
        return {block: self._at(at) for block, at in places.items()}

    def kept(self) -> Rows:
        """Return the rows that Pluto keeps, sorted by step: the row with the latest time for each step."""
        if ascend(self.steps):
            return self
        latest: dict[int, int] = {}
        for place, step in enumerate(self.steps):
            current = latest.get(step)
            if current is None or self.times[place] >= self.times[current]:
                latest[step] = place
        return self._at([latest[step] for step in sorted(latest)])

    def nodes(self) -> dict[int, int]:
        """Map each block of steps to the digest of its rows. The rows' steps must be ascending."""
        return point_digests.nodes_of(self.metric, self.steps, self.values)

    def conflict(self) -> tuple[int, float, float] | None:
        """Return (step, one value, other value) for a step that has two different values, or None."""
        values_by_step: dict[int, float] = {}
        for step, value in zip(self.steps, self.values, strict=True):
            value_before = values_by_step.setdefault(step, value)
            if value_before != value and (value_before == value_before or value == value):  # noqa: PLR0124
                return step, value_before, value
        return None


def stored(parts: Iterable[Part]) -> dict[str, Rows]:
    """Map each metric to its raw rows, without the metrics that the client adds itself."""
    rows_by_metric: dict[str, Rows] = {}
    for metric, steps, values, times in parts:
        if metric.startswith(OWN_METRICS):
            continue
        rows_by_metric.setdefault(metric, Rows(metric)).extend(steps, values, times)
    return rows_by_metric


@dataclass
class Differences:
    """Differences between the recorders' digests and the run's points. Most entries are (ranks, text)."""

    arrived: int = 0
    lost: list[tuple[set[int], str]] = field(default_factory=list)
    lost_count: int = 0
    wrong: list[tuple[set[int], str]] = field(default_factory=list)
    collided: list[tuple[set[int], str]] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    open: list[tuple[set[int], str]] = field(default_factory=list)
    """Comparisons that cannot be decided, with the reasons."""


@dataclass(frozen=True)
class Owned:
    """A process's claim about the points it logged for one metric."""

    rank: int
    record: Record
    claim: Claim


def compare(
    owned: Iterable[Owned], groups: Iterable[tuple[int, Group]], rows: dict[str, Rows], *, all_known: bool
) -> Differences:
    """Compare all processes' claims with the run's rows.

    `all_known` means that every rank has a reliable summary, so the run cannot contain any other legitimate
    points.
    """
    result = Differences()
    by_metric: dict[str, list[Owned]] = {}
    for one in owned:
        by_metric.setdefault(one.claim.metric, []).append(one)
    for metric, owners in by_metric.items():
        _compare_metric(owners, rows.get(metric) or Rows(metric), all_known, result)
    unclaimed = {metric: each for metric, each in rows.items() if metric not in by_metric}
    _compare_groups(list(groups), unclaimed, all_known, result)
    return result


def _compare_metric(owners: list[Owned], raw: Rows, all_known: bool, result: Differences) -> None:
    rows = raw.kept()
    total = _total(rows)
    if all(one.claim.digest and one.claim.digest == total for one in owners):
        result.arrived += len(rows.steps)
        return
    matched: list[Owned] = []
    unmatched: list[tuple[Owned, Rows]] = []
    for one in owners:
        claim = one.claim
        view = raw.within(claim.began_ms, claim.ended_ms).kept()
        if claim.digest and claim.digest in (total, total if view is rows else _total(view)):
            matched.append(one)
            result.arrived += claim.count
        else:
            unmatched.append((one, view))
    if not unmatched:
        _overwritten(matched, raw, result)
        _outside(rows, [one.claim for one in matched], all_known, result)
        return
    if len({one.rank for one in owners}) > 1 and _collided(owners, raw, result):
        return
    for one, view in unmatched:
        if len(raw.steps) == len(rows.steps) and _replaced(one.claim, owners):
            text = (
                f"{raw.metric}: a later process logged the same steps, and the tracker keeps only its points"
            )
            result.open.append(({one.rank}, f"rank {one.rank}: {text}"))
        else:
            _explain(one, view, alone=all_known and len(owners) == 1, result=result)


def _replaced(claim: Claim, owners: list[Owned]) -> bool:
    """Return whether a process that began later may have overwritten the points of this claim."""
    later_claims = [one.claim for one in owners if one.claim.began_ms > claim.began_ms]
    return any(other.first <= claim.last and claim.first <= other.last for other in later_claims)


def _total(rows: Rows) -> str:
    return digest_lines.short(sum(rows.nodes().values()) & MASK)


def _outside(rows: Rows, matched: list[Claim], all_known: bool, result: Differences) -> None:
    """Report points whose times lie outside the periods in which processes logged.

    `matched` contains all processes' claims.
    """
    times = [(claim.began_ms, claim.ended_ms) for claim in matched]
    steps = [
        step
        for step, time in zip(rows.steps, rows.times, strict=True)
        if not any(start <= time <= end for start, end in times)
    ]
    if steps and all_known:
        result.unexpected.append(
            f"{rows.metric}: {counted(len(steps), 'point')} in steps {min(steps)}–{max(steps)}"
        )


def _overwritten(owners: list[Owned], raw: Rows, result: Differences) -> None:
    """Report a collision if a rank overwrote the points of another rank that had logged before it."""
    own: dict[int, Rows] = {}
    for one in owners:
        rows = own.setdefault(one.rank, Rows(raw.metric))
        view = raw.within(one.claim.began_ms, one.claim.ended_ms)
        rows.extend(view.steps, view.values, view.times)
    combined = Rows(raw.metric)
    for rows in own.values():
        latest = rows.kept()
        combined.extend(latest.steps, latest.values, latest.times)
    if len(own) > 1 and (conflict := combined.conflict()) is not None:
        result.collided.append((set(own), _conflict(raw.metric, conflict)))


def _conflict(metric: str, conflict: tuple[int, float, float]) -> str:
    step, one, other = conflict
    return f"{metric} at step {step}: one process logged {one!r}, another {other!r}"


def _collided(owners: list[Owned], raw: Rows, result: Differences) -> bool:
    """Report a collision if two raw rows have different values at the same step.

    Return whether there is a collision. Raw rows are compared only if those of all ranks arrived.
    """
    if len(raw.steps) != sum(one.claim.count for one in owners):
        return False
    conflict = raw.conflict()
    if conflict is None:
        return False
    result.collided.append(({each.rank for each in owners}, _conflict(raw.metric, conflict)))
    return True


def _explain(one: Owned, view: Rows, *, alone: bool, result: Differences) -> None:
    """Report the difference between a process's points for a metric and the points in the run.

    `alone` means that no other process can have logged this metric.
    """
    claim, ranks = one.claim, {one.rank}
    difference = differing(claim, view)
    missing_count = claim.count - len(view.steps)
    if missing_count > 0:
        result.lost_count += missing_count
        text = f"{claim.metric}: {missing_count} of {counted(claim.count, 'point')}"
        result.lost.append((ranks, f"rank {one.rank}: {text}{difference.text}"))
        return
    if not claim.digest and not difference.ranges:
        steps_text = (
            f"in steps {_ranges(difference.unknown)}" if difference.unknown else "in one of its blocks"
        )
        text = (
            f"{claim.metric}: {steps_text}, points arrived after their block was complete, "
            "so they cannot be compared"
        )
        result.open.append((ranks, f"rank {one.rank}: {text}"))
    elif not alone:
        text = f"{claim.metric}: other processes may also have logged points for this metric{difference.text}"
        result.open.append((ranks, f"rank {one.rank}: {text}"))
    elif missing_count == 0 or not claim.digest:
        text = (
            f"{claim.metric}: {counted(claim.count, 'point')}, as many as were logged, but not the same ones"
        )
        result.wrong.append((ranks, f"rank {one.rank}: {text}{difference.text}"))
    else:
        result.unexpected.append(
            f"{claim.metric}: {counted(-missing_count, 'point')} more than were logged{difference.text}"
        )


@dataclass(frozen=True)
class Where:
    """The step ranges with different digests (`ranges`), or without a recorder digest (`unknown`)."""

    ranges: list[tuple[int, int]]
    unknown: list[tuple[int, int]]

    @property
    def text(self) -> str:
        return f", in steps {_ranges(self.ranges)}" if self.ranges else ""


def differing(claim: Claim, view: Rows) -> Where:
    """Return the step ranges in which a process's digests differ from those of the run.

    The ranges are blocks of steps. Blocks are larger in summaries of longer training runs.
    """
    try:
        logged = digest_lines.nodes_from(claim.nodes)
    except ValueError:
        logged = {}
    if not logged:
        return Where([], [])
    nodes = view.nodes()
    for _ in range(claim.level):
        nodes = point_digests.merged(nodes)
    recorded = {node: digest_lines.short(digest, digest_lines.NODE_BYTES) for node, digest in nodes.items()}
    size = BLOCK_STEPS << claim.level
    unknown = [node for node, digest in logged.items() if not digest]
    differ = [
        n for n in sorted({*logged, *recorded}) if n not in unknown and logged.get(n) != recorded.get(n)
    ]
    return Where(_spans(differ, size), _spans(sorted(unknown), size))


def _spans(nodes: list[int], size: int) -> list[tuple[int, int]]:
    """Return the step ranges of blocks with `size` steps each. Adjacent blocks are merged into one range."""
    spans: list[tuple[int, int]] = []
    for node in nodes:
        if spans and spans[-1][1] + 1 == node * size:
            spans[-1] = spans[-1][0], (node + 1) * size - 1
        else:
            spans.append((node * size, (node + 1) * size - 1))
    return spans


def _ranges(spans: list[tuple[int, int]]) -> str:
    suffix = ", …" if len(spans) > MAX_RANGES else ""
    return ", ".join(f"{first}–{last}" for first, last in spans[:MAX_RANGES]) + suffix


def _compare_groups(
    groups: list[tuple[int, Group]], unclaimed: dict[str, Rows], all_known: bool, result: Differences
) -> None:
    """Compare the metrics that did not fit into the summaries, and report metrics that no rank logged."""
    by_group: dict[int, list[tuple[int, Group]]] = {}
    for rank, group in groups:
        by_group.setdefault(group.group, []).append((rank, group))
    rows_by_group: dict[int, list[Rows]] = {}
    for metric, rows in unclaimed.items():
        number = digest_lines.group_of(metric)
        if number in by_group:
            rows_by_group.setdefault(number, []).append(rows.kept())
        elif all_known:
            result.unexpected.append(f"{metric}: {counted(len(rows.kept().steps), 'point')}")
    for number, members in by_group.items():
        _compare_group(members, rows_by_group.get(number, []), result)


def _compare_group(members: list[tuple[int, Group]], all_rows: list[Rows], result: Differences) -> None:
    ranks = {rank for rank, _ in members}
    logged, count = sum(group.count for _, group in members), sum(len(rows.steps) for rows in all_rows)
    total = digest_lines.short(sum(sum(rows.nodes().values()) for rows in all_rows) & MASK)
    digests = [group.digest for _, group in members]
    digest_sum = digest_lines.short(sum(map(digest_lines.digest_from, digests)) & MASK)
    if all(digests) and (total == digest_sum or set(digests) == {total}):
        result.arrived += count
        return
    names = "".join(f"{rows.metric}, " for rows in all_rows[:3])
    metrics = counted(sum(group.metrics for _, group in members), "metric")
    text = f"a group of {metrics} ({f'{names}…' if names else 'none of which is in the run'})"
    if len(members) == 1 and count < logged:
        result.lost_count += logged - count
        result.lost.append((ranks, f"{text}: {logged - count} of {counted(logged, 'point')}"))
        return
    result.open.append(
        (ranks, f"{text}: the ranks logged {counted(logged, 'point')}, but the run has {count}")
    )


def compare_blocks(
    record: Record, metric: str, leaves: Mapping[int, Leaf], raw: Rows, *, alone: bool, result: Differences
) -> int:
    """Compare the run with the blocks of a process that has no summary.

    Return the number of blocks that are in the run. `alone` means that no other process can have logged this
    metric. If the process's container is running, its client may send points later, so differences are not
    failures.
    """
    rank = record.rank or 0
    digests = raw.kept().nodes()
    differ = {block: leaf for block, leaf in leaves.items() if digests.get(block) != leaf.digest}
    views = raw.of_blocks(differ) if differ else {}
    lost_blocks: list[int] = []
    wrong_blocks: list[int] = []
    missing = matched = 0
    for block, leaf in sorted(differ.items()):
        view = views.get(block, Rows(metric)).within(leaf.began_ms, leaf.ended_ms).kept()
        if view.nodes().get(block) == leaf.digest:
            matched += 1
        elif len(view.steps) < leaf.points:
            lost_blocks.append(block)
            missing += leaf.points - len(view.steps)
        elif len(view.steps) == leaf.points and alone:
            wrong_blocks.append(block)
        else:
            steps_text = _ranges(_spans([block], BLOCK_STEPS))
            text = (
                f"{metric}: other processes may also have logged points for this metric, in steps "
                f"{steps_text}"
            )
            result.open.append(({rank}, f"rank {rank}: {text}"))
    points = counted(sum(leaf.points for leaf in leaves.values()), "point")
    note = "; its client may still send them" if record.running else ""
    if lost_blocks:
        steps_text = _ranges(_spans(lost_blocks, BLOCK_STEPS))
        text = (
            f"rank {rank}: {metric}: {missing} of {points} before its last line, in steps {steps_text}{note}"
        )
        (result.open if note else result.lost).append(({rank}, text))
        result.lost_count += 0 if note else missing
    if wrong_blocks:
        steps_text = _ranges(_spans(wrong_blocks, BLOCK_STEPS))
        text = (
            f"rank {rank}: {metric}: as many points as were logged, but not the same ones, in steps "
            f"{steps_text}{note}"
        )
        (result.open if note else result.wrong).append(({rank}, text))
    return len(leaves) - len(differ) + matched
