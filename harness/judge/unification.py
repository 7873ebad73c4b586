"""Judge whether every point that every rank logged is in one run."""

from __future__ import annotations

from harness.evidence.schema import TrackerSummary
from harness.judge import attachment, delivery, points, restarts, rewrites, strangers, truth
from harness.judge import tracker as tracker_
from harness.judge.attachment import Attached
from harness.judge.case import Case, Finding, found, names, passed, unknown
from harness.judge.ends import End
from harness.judge.points import Comparison, Recorded, compact
from harness.judge.truth import Truth


def checks(case: Case, ends: dict[int, End]) -> list[Finding]:
    """Return all checks of the points, or one UNKNOWN when no rank ever ran."""
    if not any(case.started(index) for index in range(case.expected.num_nodes)):
        return [unknown("unification", "not judged: no rank was seen running")]
    truths = [truth.read(case, rank) for rank in range(case.expected.ranks)]
    runs = case.bundle.runs()
    seen = case.bundle.attachments()
    summary = case.bundle.summary
    keeps = summary is None or summary.attachments is not None or bool(seen)
    attached = Attached(case, runs, seen if keeps else None)
    shared = attached.shared[0][1].run_id if attached.shared else None
    recorded = points.read(case.bundle, shared)
    tracker = tracker_evidence(case, summary, len(runs), len(seen), recorded.raw)
    own = [truth_complete(case, truths, ends), ranks_logged(truths), restarts.check(case, truths)]
    rest = _against_tracker(case, attached, truths, recorded, ends)
    if tracker.check.result != "PASS":
        rest = [_without_tracker(finding, tracker) for finding in rest]
        return [tracker, *own, *rest]
    return [tracker, tracker_.kept(case, summary, truths, rest), *own, *rest]


def _against_tracker(
    case: Case, attached: Attached, truths: list[Truth], recorded: Recorded, ends: dict[int, End]
) -> list[Finding]:
    exists = attachment.run_exists(attached)
    if not attached.shared:
        later = (
            "one-run",
            "run-not-stale",
            strangers.CHECK,
            "attached",
            rewrites.CHECK,
            "no-lost-points",
            "values",
            "collisions",
            "no-unexpected-points",
            "status",
        )
        return [exists, *(unknown(name, "there is no shared run to compare with") for name in later)]
    compared = points.compare(truths, recorded)
    rewritten = rewrites.explain(truths, recorded, compared)
    label = attached.label(attached.shared[0][1].run_id)
    return [
        exists,
        attachment.one_run(attached, recorded, truths, compared),
        attachment.run_fresh(attached),
        strangers.check(attached),
        attachment.every_rank(attached, truths, compared),
        rewrites.check(rewritten, label),
        points_kept(case, truths, recorded, compared, label),
        values(case, truths, compared, label),
        collisions(truths, compared, label),
        foreign(case, truths, compared, label),
        attachment.status(attached, ends),
    ]


def _without_tracker(finding: Finding, tracker: Finding) -> Finding:
    """Incomplete tracker data cannot prove that a point was lost."""
    if finding.check.result == "UNKNOWN":
        return finding
    text = f"not judged, the tracker's evidence is not whole ({finding.check.explanation})"
    return unknown(finding.check.name, text, ranks=finding.check.ranks, evidence=tracker.check.evidence)


def tracker_evidence(
    case: Case, summary: TrackerSummary | None, runs: int, attachments: int, raw: int
) -> Finding:
    """Check whether the bundle holds everything that the tracker has of this launch."""
    refs = ["tracker/summary.json"]
    if summary is None or summary.error:
        why = summary.error if summary else "no summary of its rows was written"
        return found("tracker", "tracker.unreachable", f"The tracker could not be read: {why}", evidence=refs)
    if summary.truncated:
        return found("tracker", "tracker.incomplete", "The tracker gave only part of its rows", evidence=refs)
    told = {"runs": summary.runs, "attachments": summary.attachments or 0, "points": summary.points}
    here = {"runs": runs, "attachments": attachments, "points": raw}
    if summary.writers is not None:
        told["writers"], here["writers"] = summary.writers, len(case.bundle.writers())
    missing = [f"{here[kind]} of {told[kind]} {kind}" for kind in told if here[kind] != told[kind]]
    damaged = [line for line in case.bundle.damaged if line.startswith("tracker/")]
    if missing or damaged:
        text = "The bundle holds " + ", ".join([*missing, *damaged[:3]])
        return found("tracker", "tracker.incomplete", text, evidence=refs)
    text = f"{summary.source} tracker: {runs} runs, {raw} raw rows, all in the bundle"
    return passed("tracker", text, refs)


def truth_complete(case: Case, truths: list[Truth], ends: dict[int, End]) -> Finding:
    """Check `ground-truth-complete`: no frame is missing, each rank recorded its end, the digests match."""
    bad = [truth for truth in truths if truth.incomplete]
    if not bad:
        rows = sum(truth.count for truth in truths)
        return passed(
            "ground-truth-complete", f"the ground truth of {_all(len(truths))} is complete: {rows} rows"
        )
    parts = []
    for one in bad[:4]:
        end = ends.get(one.rank // case.per_node)
        ended = f"; it {end.state}" if end and end.state in {"failed", "deleted"} else ""
        parts.append(f"rank {one.rank}: {one.incomplete}{ended.replace('it deleted', 'its pod was deleted')}")
    return found(
        "ground-truth-complete",
        "unification.truth_incomplete",
        f"What {names(t.rank for t in bad)} logged is not known completely. {'. '.join(parts)}",
        ranks=[one.rank for one in bad],
        evidence=[one.path for one in bad],
    )


def _all(count: int) -> str:
    """Return a number of ranks as text: "rank 0", "both ranks", "all 4 ranks"."""
    return {1: "rank 0", 2: "both ranks"}.get(count, f"all {count} ranks")


def ranks_logged(truths: list[Truth]) -> Finding:
    """Check whether every rank logged at all. A rank that logs nothing takes no part in the run."""
    silent = [
        t.rank for t in truths if not t.count and (t.known_silent or (not t.incomplete and t.end is not None))
    ]
    if silent:
        refs = [f"truth/{rank}.jsonl" for rank in silent]
        text = f"{names(silent)} logged nothing: by its own account 0 rows"
        return found("ranks-logged", "unification.rank_silent", text, ranks=silent, evidence=refs)
    open_ = [truth.rank for truth in truths if not truth.count]
    if open_:
        return unknown("ranks-logged", f"nothing is known of what {names(open_)} logged", ranks=open_)
    counts = ", ".join(f"rank {truth.rank}: {truth.count}" for truth in truths[:8])
    return passed("ranks-logged", f"rows by rank: {counts}" + (", …" if len(truths) > 8 else ""))


def _line_of(case: Case, rank: int, metric: str, step: int) -> str:
    for number, line in case.bundle.truth(rank):
        if line.kind == "row" and line.metric == metric and line.step == step:
            return f"truth/{rank}.jsonl:{number}"
    return f"truth/{rank}.jsonl"


def _open(truths: list[Truth]) -> list[int]:
    return [truth.rank for truth in truths if truth.incomplete]


def points_kept(
    case: Case, truths: list[Truth], recorded: Recorded, compared: Comparison, label: str
) -> Finding:
    """Check `no-lost-points`: every row of the ground truth is in the run."""
    blocks = [(rank, block, have) for rank, block, have in compared.lost_in_blocks if have < block.count]
    if compared.lost or blocks:
        parts, ranks, refs = list[str](), set[int](), list[str]()
        for (rank, metric), steps in compared.lost.items():
            ranks.add(rank)
            if len(parts) < 4:
                parts.append(f"rank {rank}: {metric} {compact(steps)}")
                refs.append(_line_of(case, rank, metric, min(steps)))
        for rank, block, have in blocks:
            ranks.add(rank)
            if len(parts) < 4:
                gone = block.count - have
                parts.append(
                    f"rank {rank}: {block.metric} {gone} of the {block.count} points of "
                    f"steps {block.first}–{block.last}"
                )
                refs.append(f"truth/{rank}.jsonl")
        total = sum(map(len, compared.lost.values())) + sum(block.count - have for _, block, have in blocks)
        more = len(compared.lost) + len(blocks) - len(parts)
        counted = (
            f"{total} points that {names(ranks)} logged are"
            if total != 1
            else f"1 point that {names(ranks)} logged is"
        )
        text = f"{counted} not in {label}: {'; '.join(parts)}"
        text += f"; and {more} more metrics" if more else ""
        why = delivery.explain(case, truths, recorded, compared)
        text += f". {why[0].upper()}{why[1:]}" if why else ""
        refs.append("tracker/points.jsonl")
        return found("no-lost-points", "unification.lost_points", text, ranks=ranks, evidence=refs)
    if compared.undecided:
        rank, block = compared.undecided[0]
        text = f"rank {rank} shares {block.metric} steps {block.first}–{block.last} with another rank beyond "
        return unknown("no-lost-points", f"{text}the row limit", ranks=[rank])
    if _open(truths):
        return unknown(
            "no-lost-points", f"not all rows of {names(_open(truths))} are known", ranks=_open(truths)
        )
    text = f"all {compared.compared} rows are in {label}"
    again = recorded.raw_shared - recorded.distinct
    text += f"; {again} raw rows were sent more than once or overwritten" if again else ""
    overwritten = sum(truth.overwritten for truth in truths)
    text += f"; ranks overwrote {overwritten} rows of their own" if overwritten else ""
    return passed("no-lost-points", text, ["tracker/points.jsonl"])


def values(case: Case, truths: list[Truth], compared: Comparison, label: str) -> Finding:
    """Check `values`: the run has exactly the doubles that the ranks logged."""
    ranks = [wrong.rank for wrong in compared.wrong] + [rank for rank, _ in compared.wrong_blocks]
    if compared.wrong:
        first = compared.wrong[0]
        text = (
            f"rank {first.rank} logged {first.metric} = {first.logged!r} at step {first.step}, "
            f"{label} has {first.seen!r}"
        )
        more = len(compared.wrong) - 1
        text += f"; and {more} more points differ" if more else ""
        refs = [_line_of(case, first.rank, first.metric, first.step), "tracker/points.jsonl"]
        return found("values", "unification.wrong_value", text, ranks=ranks, evidence=refs)
    if compared.wrong_blocks:
        rank, block = compared.wrong_blocks[0]
        text = (
            f"rank {rank} logged {block.count} points of {block.metric} at steps {block.first}–{block.last}; "
            f"{label} has as many, with other values or steps"
        )
        return found("values", "unification.wrong_value", text, ranks=ranks, evidence=[f"truth/{rank}.jsonl"])
    if _open(truths) or compared.undecided:
        return unknown("values", "not all rows are known", ranks=_open(truths))
    arrived = sum(compared.arrived.values())
    which = f"all {arrived}" if arrived == compared.compared else f"the {arrived} that came"
    return passed("values", f"{which} values are exactly those logged")


def collisions(truths: list[Truth], compared: Comparison, label: str) -> Finding:
    """Check `collisions`: no two ranks logged different values for one metric and step."""
    if compared.collisions:
        (metric, step), said = next(iter(sorted(compared.collisions.items())))
        told = ", ".join(f"rank {rank} logged {value!r}" for rank, value in sorted(said.items()))
        text = f"{metric} at step {step}: {told}; {label} can keep only one of them"
        more = len(compared.collisions) - 1
        text += f" (and {more} more points)" if more else ""
        ranks = {rank for values_ in compared.collisions.values() for rank in values_}
        refs = [f"truth/{rank}.jsonl" for rank in sorted(said)]
        return found("collisions", "unification.metric_collision", text, ranks=ranks, evidence=refs)
    if _open(truths) or compared.undecided:
        return unknown("collisions", "not all rows are known", ranks=_open(truths))
    return passed("collisions", "no metric and step was logged with different values")


def foreign(case: Case, truths: list[Truth], compared: Comparison, label: str) -> Finding:
    """Check `no-unexpected-points`: every point was logged by a rank, or is the client's own (sys/)."""
    extra = [(block, have) for _, block, have in compared.lost_in_blocks if have > block.count]
    if (compared.foreign or extra) and _open(truths):
        text = f"{label} holds points that may be those unknown of {names(_open(truths))}"
        return unknown("no-unexpected-points", text, ranks=_open(truths))
    if compared.foreign or extra:
        parts = [f"{metric} {compact(steps)}" for metric, steps in sorted(compared.foreign.items())]
        parts += [f"{b.metric} {have - b.count} more in steps {b.first}–{b.last}" for b, have in extra]
        more = f"; and {len(parts) - 4} more metrics" if len(parts) > 4 else ""
        text = f"{label} holds points that no rank logged: {'; '.join(parts[:4])}{more}"
        text += delivery.senders(case, compared.foreign)
        return found(
            "no-unexpected-points", "unification.foreign_points", text, evidence=["tracker/points.jsonl"]
        )
    if _open(truths):
        return unknown("no-unexpected-points", "not all rows are known", ranks=_open(truths))
    return passed("no-unexpected-points", "every point in the run was logged by a rank")
