"""Determine which names, values and steps the Pluto client changed (workers/ground_truth/client_rules.py).

`explain` removes from the comparison all differences that result from the client's rules, so that a renamed
metric is not reported as both lost and foreign. The remaining differences have another cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from harness.core.checks import CheckId
from harness.evidence.schema.ground_truth import TruthBlock, TruthRewrite
from harness.judge.case import names
from harness.judge.finding import Finding, counted, not_passed, passed
from harness.judge.points.compare import Comparison, Recorded, compact, fits, same
from harness.judge.points.ground_truth import Truth
from harness.judge.points.omitted_values import Omission
from harness.judge.points.series import NONE
from harness.workers.ground_truth.client_rules import sent_name

CHECK: Final[CheckId] = "client-kept"


@dataclass
class Rewritten:
    """The changes that the client made to names, values and steps."""

    merged: dict[str, list[str]] = field(default_factory=dict)
    """Maps each name under which the client logged several metrics to the original names of those metrics."""
    overwritten: dict[tuple[int, str], list[int]] = field(default_factory=dict)
    """Steps per (rank, metric) that are missing from the run because another metric was sent under the same
    name."""
    renamed: dict[tuple[int, str], list[int]] = field(default_factory=dict)
    """Steps per (rank, metric) that the run contains under the new name."""
    renamed_blocks: list[tuple[int, TruthBlock]] = field(default_factory=list)
    dropped: dict[tuple[int, str], list[int]] = field(default_factory=dict)
    """Steps per (rank, metric) whose values the client omitted."""
    why: dict[tuple[int, str], str] = field(default_factory=dict)
    """The reasons why the client omitted or changed values, per (rank, metric)."""
    rewrites: dict[tuple[int, str], list[TruthRewrite]] = field(default_factory=dict)
    """Recorded values that the client changed or omitted, per (rank, reason)."""

    @property
    def ranks(self) -> set[int]:
        keyed = (*self.overwritten, *self.renamed, *self.dropped)
        return {rank for rank, _ in (*keyed, *self.renamed_blocks, *self.rewrites)}


def explain(
    truths: list[Truth], recorded: Recorded, comparison: Comparison, omissions: Iterable[Omission] = ()
) -> Rewritten:
    """Remove from `comparison` the lost and foreign points that the client's rules explain.

    Return these points. `omissions` lists the values that the client omitted, according to the recorder that
    wraps it.
    """
    reasons = {(one.rank, one.key): one.why for one in omissions}
    result = Rewritten()
    by_rank = {truth.rank: truth for truth in truths}
    sources: dict[str, dict[str, None]] = {}
    for truth in truths:
        for metric in [*truth.rows, *(block.metric for block in truth.blocks)]:
            sources.setdefault(sent_name(metric), {})[metric] = None
        for rewrite in truth.rewrites:
            reasons.setdefault((truth.rank, rewrite.metric), rewrite.why)
            result.rewrites.setdefault((truth.rank, rewrite.why), []).append(rewrite)
    result.why, observed = reasons, {(one.rank, one.key) for one in omissions}
    result.merged = {name: list(of) for name, of in sources.items() if len(of) > 1}
    for (rank, metric), steps in list(comparison.missing.items()):
        remaining = _renamed(by_rank[rank], metric, steps, recorded, result)
        was_dropped = any(not one.kept and one.metric == metric for one in by_rank[rank].rewrites)
        if remaining and (was_dropped or (rank, metric) in observed):
            result.dropped[rank, metric] = remaining
            remaining = []
        _set_or_remove(comparison.missing, (rank, metric), remaining)
    for entry in list(comparison.missing_in_blocks):
        rank, block, recorded_count = entry
        if recorded_count == 0 and _has_block(recorded, block):
            result.renamed_blocks.append((rank, block))
            comparison.missing_in_blocks.remove(entry)
    # The value may belong to another metric to which the client gave the same name.
    for wrong in list(comparison.wrong):
        candidates = [
            truth.rows.get(m, NONE).get(wrong.step) for truth in truths for m in sources.get(wrong.metric, {})
        ]
        if wrong.metric in result.merged and any(
            same(wrong.recorded, value) for value in candidates if value is not None
        ):
            result.overwritten.setdefault((wrong.rank, wrong.metric), []).append(wrong.step)
            comparison.wrong.remove(wrong)
    for name, steps in list(comparison.foreign.items()):
        _set_or_remove(
            comparison.foreign,
            name,
            [step for step in steps if not _expected(truths, sources.get(name, {}), step)],
        )
    return result


def _renamed(truth: Truth, metric: str, steps: list[int], recorded: Recorded, result: Rewritten) -> list[int]:
    """Add a metric's lost steps to `result` if the metric's new name explains them.

    Return the remaining steps.
    """
    name = sent_name(metric)
    series = recorded.shared.get(name, NONE)
    if name == metric:
        return steps
    rows = truth.rows[metric]
    renamed = [step for step in steps if step in series and same(series[step], rows[step])]
    overwritten = [
        step for step in steps if step in series and step not in set(renamed) and name in result.merged
    ]
    truth_key = (truth.rank, metric)
    _set_or_remove(result.renamed, truth_key, renamed)
    _set_or_remove(result.overwritten, truth_key, overwritten)
    explained = {*renamed, *overwritten}
    return [step for step in steps if step not in explained]


def _set_or_remove(target: dict, key: object, steps: list[int]) -> None:  # type: ignore[type-arg]
    """Set a key's steps, or remove the key if there are no steps."""
    if steps:
        target[key] = steps
    else:
        target.pop(key, None)


def _expected(truths: list[Truth], originals: dict[str, None], step: int) -> bool:
    """Return whether a rank logged this step under an original name that the client replaced."""
    return any(
        step in truth.rows.get(metric, NONE)
        or any(block.metric == metric and block.first <= step <= block.last for block in truth.blocks)
        for truth in truths
        for metric in originals
        if sent_name(metric) != metric
    )


def _has_block(recorded: Recorded, block: TruthBlock) -> bool:
    """Return whether the run contains exactly the block's points under the metric's new name."""
    name = sent_name(block.metric)
    series = recorded.shared.get(name, NONE)
    steps = sorted(step for step in series if block.first <= step <= block.last)
    if name == block.metric or len(steps) != block.count:
        return False
    return fits(block, steps, series)


def check(result: Rewritten, label: str) -> Finding:
    """Run the `client-kept` check: the client sent names, values and steps as the ranks logged them."""
    parts = [
        f"{result.why[rank, metric]}: {metric!r} of rank {rank} ({compact(steps)})"
        for (rank, metric), steps in result.dropped.items()
    ]
    dropped_keys = {(rank, metric) for rank, metric in result.dropped}
    for (rank, reason), rewrites in result.rewrites.items():
        kept_rewrites = [one for one in rewrites if (rank, one.metric) not in dropped_keys]
        extra = len({one.metric for one in kept_rewrites}) - 1
        parts += [
            f"{reason}: {one.metric} = {one.was} at step {one.step} of rank {rank}"
            + (f", and {extra} more of its metrics" if extra > 0 else "")
            for one in kept_rewrites[:1]
        ]
    for name, metrics in sorted(result.merged.items()):
        rank_names = names(rank for rank, metric in result.overwritten if sent_name(metric) == name)
        missing = [
            step
            for (_, metric), steps in result.overwritten.items()
            if sent_name(metric) == name
            for step in steps
        ]
        text = f"{', '.join(map(repr, metrics))} became one metric, {name!r}, with one value for each step"
        verb = "is" if len(missing) == 1 else "are"
        lost = f": {counted(len(missing), 'point')} of {rank_names} {verb} lost ({compact(missing)})"
        parts.append(text + (lost if missing else ""))
    counts: dict[str, Counter[int]] = {}
    for (rank, metric), steps in result.renamed.items():
        counts.setdefault(metric, Counter())[rank] += len(steps)
    for rank, block in result.renamed_blocks:
        counts.setdefault(block.metric, Counter())[rank] += block.count
    parts += [
        f"{metric!r} of {names(ranks)} was renamed to {sent_name(metric)!r} "
        f"({counted(ranks.total(), 'point')})"
        for metric, ranks in counts.items()
    ]
    if not parts:
        return passed(CHECK, "Pluto's client changed no name, value or step")
    text = f"Pluto's client did not send to {label} exactly what the ranks logged"
    refs = [f"truth/{rank}.jsonl" for rank in sorted(result.ranks)][:4]
    return not_passed(
        CHECK,
        "unification.client_rewrote",
        text,
        details=parts,
        ranks=result.ranks,
        evidence=[*refs, "tracker/points.jsonl"],
    )
