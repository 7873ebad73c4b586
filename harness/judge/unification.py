"""Judge whether one run contains all points that the ranks logged."""

from __future__ import annotations

from harness.judge.case import Case, names
from harness.judge.context import Facts
from harness.judge.finding import LIMIT, Finding, counted, listed, not_passed, passed, unknown
from harness.judge.points import altered, lost_points, omitted_values, overwritten, stopped_early
from harness.judge.points.compare import Wrong, compact
from harness.judge.points.ground_truth import Truth
from harness.judge.points.overwritten import How
from harness.judge.ranks import survived_gpu_errors

EXPECT_RANKS = "pluto-e2e-harness/expect-ranks"
"""The label or annotation that declares which ranks log. harness/launch/labels.py also defines it."""


def tracker_evidence(facts: Facts) -> Finding:
    """Run the `tracker` check: the bundle contains everything that the tracker stored for this launch."""
    summary, refs = facts.bundle.summary, ["tracker/summary.json"]
    # The files must be read first, so that the list of damaged files below is complete.
    read_counts = {
        "runs": len(facts.attached.runs),
        "attachments": len(facts.attached.attachments or []),
        "points": facts.recorded.raw,
    }
    if summary is None or summary.error:
        reason = summary.error if summary else "the bundle has no summary of its rows"
        return not_passed(
            "tracker", "tracker.unreachable", f"the tracker could not be read: {reason}", evidence=refs
        )
    if summary.truncated:
        text = "the tracker returned only some of its rows"
        return not_passed("tracker", "tracker.incomplete", text, evidence=refs)
    stored_counts = {"runs": summary.runs, "attachments": summary.attachments or 0, "points": summary.points}
    if summary.writers is not None:
        stored_counts["writers"], read_counts["writers"] = summary.writers, len(facts.bundle.writers())
    if summary.digests is not None:
        stored_counts["digests"], read_counts["digests"] = summary.digests, len(facts.bundle.digests())
    differ = [
        f"{read_counts[kind]} of {stored_counts[kind]} {kind}"
        for kind in stored_counts
        if read_counts[kind] != stored_counts[kind]
    ]
    damaged = [line for line in facts.bundle.damaged if line.startswith("tracker/")]
    if differ or damaged:
        text = "the bundle does not hold exactly the rows that the tracker reports"
        return not_passed("tracker", "tracker.incomplete", text, details=[*differ, *damaged], evidence=refs)
    rows = f"{counted(read_counts['runs'], 'run')} and {counted(read_counts['points'], 'raw row')}"
    text = f"the bundle holds everything that the {summary.source} tracker stored: {rows}"
    return passed("tracker", text, refs)


def truth_complete(facts: Facts) -> Finding:
    """Run the `ground-truth-complete` check: the recorders lost no points.

    No frames are missing, each rank recorded its end, and the digests match.
    """
    incomplete = [truth for truth in facts.truths if truth.incomplete]
    if not incomplete:
        rows = sum(truth.count for truth in facts.truths)
        subject = _all(len(facts.truths))
        return passed(
            "ground-truth-complete", f"the ground truth of {subject} is complete: {counted(rows, 'row')}"
        )
    if facts.failed("world"):  # Some of the job's ranks never existed.
        return unknown("ground-truth-complete", "see world", ranks=[truth.rank for truth in incomplete])
    state_texts = {"failed": " (it failed)", "deleted": " (its pod was deleted)"}
    states = {rank: end.state for end in facts.ends.values() for rank in facts.case.ranks_of(end.index)}
    return not_passed(
        "ground-truth-complete",
        "unification.truth_incomplete",
        f"the ground truth of {names(truth.rank for truth in incomplete)} is incomplete",
        details=[
            f"rank {t.rank}: {t.incomplete}{state_texts.get(states.get(t.rank, ''), '')}" for t in incomplete
        ],
        ranks=[truth.rank for truth in incomplete],
        evidence=[truth.path for truth in incomplete],
    )


def _all(count: int) -> str:
    """Format a number of ranks as text: "rank 0", "both ranks" or, for example, "all 4 ranks"."""
    return {1: "rank 0", 2: "both ranks"}.get(count, f"all {count} ranks")


def ranks_logged(facts: Facts) -> Finding:
    """Run the `ranks-logged` check: every rank that should log has logged, and none stopped with an error."""
    case = facts.case
    absent = [rank for rank in case.expected.ranks_that_log or [] if rank not in case.ranks]
    if absent:
        text = f"{names(absent)} should log, but the job has no such ranks"
        return not_passed("ranks-logged", "unification.rank_silent", text, evidence=["manifest.json"])
    silent_truths = [truth for truth in facts.truths if not truth.count]
    expected = [truth for truth in silent_truths if truth.rank in case.logging]
    if certain := [t for t in expected if t.logs_nothing or (not t.incomplete and t.end is not None)]:
        return _silent(facts, certain)
    if unknown_ranks := [
        t.rank for t in silent_truths if t.rank in case.logging or (t.incomplete and not t.logs_nothing)
    ]:
        return unknown(
            "ranks-logged", f"it is not known what {names(unknown_ranks)} logged", ranks=unknown_ranks
        )
    if (finding := _ended_by_error(facts)) is not None:
        return finding
    rows = [f"{counted(truth.count, 'row')} by rank {truth.rank}" for truth in facts.truths if truth.count]
    if len(case.logging) == len(case.ranks):
        return passed("ranks-logged", "every rank logged", details=rows)
    quiet_text = f", and {names(t.rank for t in silent_truths)} logged nothing" if silent_truths else ""
    return passed("ranks-logged", f"only {names(case.logging)} had to log{quiet_text}", details=rows)


def _ended_by_error(facts: Facts) -> Finding | None:
    """Return the finding for ranks that ended with exit code 0 after an error, or None."""
    if stopped_ranks := stopped_early.find(facts.case, facts.truths):
        return _stopped(stopped_ranks)
    if any(end.state != "succeeded" for end in facts.ends.values()):
        return None
    return survived_gpu_errors.without_gpu(facts.case, facts.truths)


def _stopped(stopped_ranks: list[stopped_early.Stopped]) -> Finding:
    """Return the finding for ranks that exited with 0, but printed an exception and stopped logging early."""
    first = stopped_ranks[0]
    ranks = [one.rank for one in stopped_ranks]
    text = f"{names(ranks)} ended with exit code 0, but logged less than the others and printed an exception"
    details = [
        f"rank {one.rank} logged {one.metric} until step {one.step}, the others until step {one.others}, and "
        f"in between, its log shows: {one.error}"
        for one in stopped_ranks
    ]
    refs = [*(one.ref for one in stopped_ranks), f"truth/{first.rank}.jsonl"]
    return not_passed("ranks-logged", "rank.stopped_early", text, details=details, ranks=ranks, evidence=refs)


def _silent(facts: Facts, certain: list[Truth]) -> Finding:
    """Return the finding for ranks that ended without recording any points."""
    ranks = [truth.rank for truth in certain]
    if past := _not_silent(facts, ranks):
        text = f"{names(past)} logged without run.log: see no-unexpected-points"
        return unknown("ranks-logged", text, ranks=past)
    text = f"{names(ranks)} logged nothing: the ground truth has 0 rows"
    line = _line_that_allows(facts)
    reasons = lost_points.not_uploaded(facts.truths, ranks)
    if line and not reasons:
        reasons = [f"if only {names(_logged(facts))} should log in this job, declare it: {line}"]
    refs = [truth.path for truth in certain]
    return not_passed(
        "ranks-logged", "unification.rank_silent", text, why=reasons, ranks=ranks, evidence=refs
    )


def _logged(facts: Facts) -> list[int]:
    return [truth.rank for truth in facts.truths if truth.count]


def _line_that_allows(facts: Facts) -> str:
    """Return the line that declares in the job file which ranks log, or "" if it would not help."""
    ranks = _logged(facts)
    if not ranks or facts.case.expected.ranks_that_log is not None:
        return ""
    if facts.passed("tracker") and facts.attached.shared and facts.compared.collisions:
        return ""  # The ranks overwrote each other's points, and a declaration would not prevent this.
    konduktor = facts.case.launch.launcher == "konduktor"
    text = ("_" if konduktor else ",").join(map(str, ranks[:8])) + ("…" if len(ranks) > 8 else "")
    return f'{EXPECT_RANKS}: "{text}" in {"resources.labels" if konduktor else "metadata.annotations"}'


def _not_silent(facts: Facts, ranks: list[int]) -> list[int]:
    """Return those of `ranks` whose pods sent points to the tracker without a recorded `run.log` call."""
    if not (facts.passed("tracker") and facts.attached.shared and facts.compared.foreign):
        return []
    nodes = lost_points.origin(facts.attached, facts.compared.foreign).nodes
    return sorted(set(ranks) & set(facts.case.ranks_of(*nodes)))


def _line_of(case: Case, rank: int, metric: str, step: int) -> str:
    for number, line in case.bundle.truth(rank):
        if line.kind == "row" and line.metric == metric and line.step == step:
            return f"truth/{rank}.jsonl:{number}"
    return f"truth/{rank}.jsonl"


def no_lost_points(facts: Facts) -> Finding:
    """Run the `no-lost-points` check: every point in the ground truth is in the run."""
    comparison, recorded = facts.compared, facts.recorded
    blocks = [
        (rank, block, recorded_count)
        for rank, block, recorded_count in comparison.missing_in_blocks
        if recorded_count < block.count
    ]
    if comparison.missing or blocks:
        missing = [
            f"rank {rank}: {metric} {compact(steps)}" for (rank, metric), steps in comparison.missing.items()
        ]
        missing += [
            f"rank {rank}: {block.metric} {block.count - recorded_count} of "
            f"{counted(block.count, 'point')} in "
            f"steps {block.first}–{block.last}"
            for rank, block, recorded_count in blocks
        ]
        refs = [
            _line_of(facts.case, rank, metric, min(steps))
            for (rank, metric), steps in list(comparison.missing.items())[:LIMIT]
        ]
        refs += [f"truth/{rank}.jsonl" for rank, _, _ in blocks[: LIMIT - len(refs)]]
        ranks = {rank for rank, _ in comparison.missing} | {rank for rank, _, _ in blocks}
        reasons = [
            *altered.points(facts.case.bundle, facts.truths, comparison, recorded),
            *lost_points.explain(facts.case, facts.truths, recorded, comparison),
        ]
        total = sum(map(len, comparison.missing.values())) + sum(
            block.count - recorded_count for _, block, recorded_count in blocks
        )
        return not_passed(
            "no-lost-points",
            "unification.lost_points",
            f"{facts.label} lacks {counted(total, 'point')} that {names(ranks)} logged",
            details=missing,
            why=reasons,
            ranks=ranks,
            evidence=[*refs, "tracker/points.jsonl"],
            advice="" if reasons else f"see the end of the log of {names(ranks)}: no client reports a reason",
        )
    duplicate_count = recorded.raw_shared - recorded.distinct
    overwritten = sum(truth.overwritten for truth in facts.truths)
    verb = "was" if duplicate_count == 1 else "were"
    reasons = (
        [f"{counted(duplicate_count, 'raw row')} {verb} sent more than once or overwritten"]
        if duplicate_count
        else []
    )
    reasons += [f"ranks overwrote {overwritten} of their own rows"] if overwritten else []
    text = f"all {comparison.compared} rows are in {facts.label}"
    return passed("no-lost-points", text, ["tracker/points.jsonl"], why=reasons)


def values(facts: Facts) -> Finding:
    """Run the `values` check: every value in the run is exactly the double that the rank logged."""
    wrong, blocks = facts.compared.wrong, facts.compared.wrong_blocks
    if not wrong and not blocks:
        arrived = sum(facts.compared.arrived.values())
        return passed("values", f"the values of {counted(arrived, 'row')} are exactly those logged")
    ranks = [one.rank for one in wrong] + [rank for rank, _ in blocks]
    differ = [
        f"rank {w.rank} logged {w.metric} = {w.logged!r} at step {w.step}, but the run has {w.recorded!r}"
        for w in wrong
    ]
    differ += [
        f"rank {rank} logged {counted(block.count, 'point')} of {block.metric} at steps "
        f"{block.first}–{block.last}, "
        "but the run has as many points with other values or steps"
        for rank, block in blocks
    ]
    first = [_line_of(facts.case, one.rank, one.metric, one.step) for one in wrong[:1]]
    refs = [*(first or [f"truth/{ranks[0]}.jsonl"]), "tracker/points.jsonl"]
    text = f"{facts.label} has values other than those that {names(ranks)} logged"
    earlier = altered.earlier_values(facts.case.bundle, facts.truths, wrong)
    others = [one for one in wrong if one not in earlier]
    reasons = altered.values(others) if not blocks else []
    runs = {run.run_id for _, run in facts.attached.shared}
    if reasons and altered.arrived_as_logged(facts.case.bundle, runs, others):
        reasons = []
    advice = altered.VALUES_ADVICE if reasons else ""
    if earlier:
        count = counted(len(earlier), "point")
        advice = advice if others or blocks else altered.EARLIER_ADVICE
        reasons = [
            f"in {count}, the run has an earlier value of the same rank instead of its last one",
            *reasons,
        ]
    return not_passed(
        "values",
        "unification.wrong_value",
        text,
        details=differ,
        why=reasons or _senders_of(facts, wrong),
        ranks=ranks,
        evidence=refs,
        advice=advice,
    )


def _senders_of(facts: Facts, wrong: list[Wrong]) -> list[str]:
    """Return a one-item list naming the senders of the wrong points, or [] if there is at most one sender."""
    steps: dict[str, list[int]] = {}
    for one in wrong:
        steps.setdefault(one.metric, []).append(one.step)
    senders = lost_points.origin(facts.attached, steps).senders
    return [f"these metrics and steps were sent by {listed(senders)}"] if len(senders) > 1 else []


def collisions(facts: Facts) -> Finding:
    """Run the `collisions` check: no two processes logged different values for the same metric and step."""
    collided = sorted(facts.compared.collisions.items())
    if not collided:
        return _own_collisions(facts)
    details = [
        f"{metric} at step {step}: " + ", ".join(f"rank {r} logged {v!r}" for r, v in sorted(logged.items()))
        for (metric, step), logged in collided
    ]
    return not_passed(
        "collisions",
        "unification.metric_collision",
        f"ranks logged different values for one metric and step, and {facts.label} can keep only one",
        details=details,
        ranks={rank for _, logged in collided for rank in logged},
        evidence=[f"truth/{rank}.jsonl" for rank in sorted(collided[0][1])],
    )


def _own_collisions(facts: Facts) -> Finding:
    """Return the finding for points that a rank overwrote with its own later points.

    In some cases, overwriting is allowed. The finding then passes and lists the points as details.
    """
    records = omitted_values.recorders(facts.agreement)
    truths = [records[truth.rank] or truth for truth in facts.truths]
    overwrites = overwritten.find(truths, facts.restarts)
    if not overwrites:
        return passed("collisions", "no metric was logged with different values for the same step")
    points = sum(one.count for one in overwrites)
    for kinds, cause, head in (
        (
            [How.AT_ONCE],
            "unification.metric_collision",
            "two processes of one rank logged different values for one metric and step",
        ),
        (
            [How.OLDER_STAYS, How.OTHER_LIFE],
            "unification.overwritten",
            "values that a rank had logged are not in the run, because it logged the same steps again",
        ),
    ):
        failures = [one for one in overwrites if one.how in kinds]
        if failures:
            return not_passed(
                "collisions",
                cause,  # type: ignore[arg-type]
                head,
                details=[one.text for one in failures],
                ranks={one.rank for one in failures},
                evidence=[f"truth/{rank}.jsonl" for rank in sorted({one.rank for one in failures})],
            )
    text = (
        f"ranks logged {counted(points, 'point')} again with another value, and the run shows the latest "
        "value"
    )
    return passed("collisions", text, details=[one.text for one in overwrites])


def foreign(facts: Facts) -> Finding:
    """Run the `no-unexpected-points` check: ranks logged all points, except for system metrics (sys/)."""
    comparison = facts.compared
    extra = [
        (block, recorded_count)
        for _, block, recorded_count in comparison.missing_in_blocks
        if recorded_count > block.count
    ]
    if not comparison.foreign and not extra:
        return passed("no-unexpected-points", "every point in the run was logged by a rank")
    origin = lost_points.origin(facts.attached, comparison.foreign)
    senders = [f"they were sent by {listed(origin.senders)}"] if origin.senders else []
    is_own = bool(origin.nodes) and not origin.unknown and not extra
    details = [f"{metric} {compact(steps)}" for metric, steps in sorted(comparison.foreign.items())]
    details += [
        f"{b.metric} {recorded_count - b.count} more in steps {b.first}–{b.last}"
        for b, recorded_count in extra
    ]
    return not_passed(
        "no-unexpected-points",
        "unification.foreign_points",
        f"{facts.label} holds points that no rank logged",
        details=details,
        why=[*senders, *_past(facts, origin)],
        ranks=facts.case.ranks_of(*origin.nodes) if is_own else (),
        evidence=["tracker/points.jsonl"],
        advice="find out what logs without run.log in that pod: another process, or the client's internal "
        "calls"
        if is_own
        else "",
    )


def _past(facts: Facts, origin: lost_points.Origin) -> list[str]:
    """Return a sentence for each pod of the job that sent points without a recorded call to `run.log`."""
    return [
        f"{counted(count, 'point')} came from the pod of {names(facts.case.ranks_of(node))} without a "
        "recorded call of run.log"
        for node, count in sorted(origin.nodes.items())
    ]
