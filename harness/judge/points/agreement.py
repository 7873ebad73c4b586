"""Judge whether a rank's two recorders agree: the worker's own, and the one that wraps the Pluto client.

If a worker records its own points, its record is compared with the tracker, and must contain the same points
as the wrapping recorder's record. A point that only the wrapping recorder recorded was still passed to the
client, so the run must contain it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from harness.core.checks import CheckId
from harness.judge.case import Case, names
from harness.judge.finding import Finding, counted, not_passed, passed, unknown
from harness.judge.points import ground_truth
from harness.judge.points.compare import same
from harness.judge.points.ground_truth import Truth
from harness.judge.points.series import NONE, joined

CHECK: Final[CheckId] = "recorders-agree"
SUFFIX = ".outside"
Differences = list[tuple[str, int, str]]
"""Entries of (metric, step, how the records differ). The step is -1 if it is unknown."""


@dataclass
class Agreement:
    """The points that the ranks logged, and the differences between each rank's two records."""

    truths: list[Truth]
    pairs: list[tuple[Truth, Truth]]
    """Pairs of (the rank's own record, the wrapping recorder's record)."""
    apart: dict[int, tuple[Truth, Differences]]
    """Maps each rank with differences to the wrapping recorder's record and a list of the differences."""
    cut: list[int]
    """Ranks whose own record is incomplete. Such a rank may have recorded a point without passing it to the
    client."""

    def finding(self) -> Finding:
        """Run the `recorders-agree` check: both records of each rank contain the same points."""
        ranks = [own.rank for own, _ in self.pairs]
        if not self.pairs:
            return passed(CHECK, "each rank has only one record, so there is nothing to compare")
        if self.apart:
            refs = [p for rank, (other, _) in self.apart.items() for p in (f"truth/{rank}.jsonl", other.path)]
            return not_passed(
                CHECK,
                "unification.recorders_disagree",
                f"the points that {names(self.apart)} recorded differ from those passed to the client",
                details=[_difference(rank, *difference) for rank, difference in self.apart.items()],
                ranks=self.apart,
                evidence=refs,
            )
        if self.cut:
            return unknown(CHECK, f"the ground truth of {names(self.cut)} is incomplete", ranks=self.cut)
        rows = sum(other.count for _, other in self.pairs)
        text = f"{names(ranks)} recorded exactly what was passed to the client: {counted(rows, 'row')}"
        return passed(CHECK, text, [other.path for _, other in self.pairs])


def compare(case: Case, truths: list[Truth]) -> Agreement:
    """Compare each rank's two records. The result's `truths` contain the points from both records."""
    pairs = [(one, other) for one in truths if (other := _other(case, one)) is not None]
    apart = {
        own.rank: (other, differing)
        for own, other in pairs
        if not own.incomplete and (differing := [*differences(own, other)])
    }
    seconds = {own.rank: other for own, other in pairs}
    merged = [_joined(own, seconds[own.rank]) if own.rank in seconds else own for own in truths]
    return Agreement(merged, pairs, apart, [own.rank for own, _ in pairs if own.incomplete])


def _joined(own: Truth, other: Truth) -> Truth:
    """Return the rank's own record, supplemented with points and client settings found only in `other`."""
    for attempt, other_attempt in zip(own.attempts, other.attempts, strict=False):
        attempt.settings = attempt.settings or other_attempt.settings
    missing = {
        metric: joined(own.rows.get(metric), series)
        for metric, series in other.rows.items()
        if metric not in own.rows or not own.rows[metric].same_steps(series)
    }
    return replace(own, rows={**own.rows, **missing}) if missing else own


def _other(case: Case, own: Truth) -> Truth | None:
    """Return the wrapping recorder's record for a rank that also recorded its own points, or None.

    The record includes a child process only if the rank's own record also includes it. Any other child
    process that writes to the run is a foreign writer.
    """
    if not own.attempts or not case.bundle.has(f"truth/{own.rank}{SUFFIX}.jsonl"):
        return None
    pids = [attempt.start.pid if attempt.start else None for attempt in own.attempts]
    children = None if None in pids else frozenset(filter(None, pids))  # Older recorders wrote no PIDs.
    return ground_truth.read(case, own.rank, SUFFIX, children)


def differences(own: Truth, other: Truth) -> Iterator[tuple[str, int, str]]:
    """Yield the differences between a rank's two records.

    If a record exceeds the row limit, the metrics are compared by their digests.
    """
    if own.blocks or other.blocks:
        own_metrics, other_metrics = (one.attempts[-1].metrics if one.end else {} for one in (own, other))
        if own.end and own.end == other.end and not own_metrics and not other_metrics:
            # Older recorders wrote only the total digest if there were many metrics. Here, the total digests
            # are equal.
            return
        for metric in sorted(
            metric
            for metric in {*own_metrics, *other_metrics}
            if own_metrics.get(metric) != other_metrics.get(metric)
        ):
            counts = [(side.get(metric) or (0, ""))[0] for side in (own_metrics, other_metrics)]
            recorded, passed_on = (counted(count, "row") for count in counts)
            if counts[0] == counts[1]:
                yield metric, -1, f"{recorded} recorded and as many passed to the client, but they differ"
            else:
                yield metric, -1, f"{recorded} recorded, but {passed_on} passed to the client"
        if not own_metrics or not other_metrics:
            yield "", -1, "one of the two records has no digests of its metrics"
        return
    for metric in sorted({*own.rows, *other.rows}):
        own_rows, other_rows = own.rows.get(metric, NONE), other.rows.get(metric, NONE)
        if own_rows.same_as(other_rows):
            continue
        for step in sorted({*own_rows, *other_rows}):
            if step not in other_rows:
                yield metric, step, "recorded by the worker, but not passed to the client"
            elif step not in own_rows:
                yield metric, step, "passed to the client, but not recorded by the worker"
            elif not same(own_rows[step], other_rows[step]):
                yield (
                    metric,
                    step,
                    f"recorded as {own_rows[step]!r}, passed to the client as {other_rows[step]!r}",
                )


def _difference(rank: int, other: Truth, differing: Differences) -> str:
    metric, step, description = differing[0]
    place = metric + (f" at step {step}" if step >= 0 else "")
    text = f"rank {rank}: {place}{': ' if place else ''}{description}"
    text += f"; and {counted(len(differing) - 1, 'more difference')}" if len(differing) > 1 else ""
    return text + (f" (the record of the client's calls: {other.incomplete})" if other.incomplete else "")
