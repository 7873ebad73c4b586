"""Judge whether the run contains every point logged by ranks whose recorder was injected at pod admission.

    pods = [digest_records.read(log_lines, nonce=owner_uid, pod=name) for each pod]
    findings = digest_check.judge(pods, ranks=range(world), parts=rows_by_metric, run="17", label="run 17")

Such a recorder writes one line per minute to the pod's log, and a summary when its process ends. A rank
without a summary never passes: its last line shows how many points it had logged until then, but later points
are not known. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable

from harness.core.checks import CheckId
from harness.evidence.schema.columns import Part
from harness.judge.case import names
from harness.judge.finding import Finding, counted, not_passed, passed, unknown
from harness.judge.points import digest_reports
from harness.judge.points.digest_comparison import Differences, Owned, Rows, compare, compare_blocks, stored
from harness.judge.points.digest_records import PodRecord, Record, Summary
from harness.judge.points.omitted_values import NONE, NOOP
from harness.workers.recorder import digest_lines, point_digests
from harness.workers.recorder.digest_lines import Line
from harness.workers.recorder.point_digests import MASK

EVIDENCE = ["tracker/points.jsonl"]


def judge(
    pods: Iterable[PodRecord],
    *,
    ranks: Collection[int],
    parts: Iterable[Part],
    run: str | None,
    label: str = "the run",
) -> list[Finding]:
    """Return the findings about the records that injected recorders wrote in the job's pods.

    `ranks` are the job's ranks, `parts` are the run's raw rows in arrival order, and `run` is the tracker's
    own id for the run. If `run` is None because the run is not known or could not be read, the findings about
    points are meaningless.
    """
    pods = list(pods)
    rows = stored(parts)
    problems = {rank: problem for rank in sorted(ranks) if (problem := _problem(rank, pods, run))}
    records = [record for pod in pods for record in pod.records if record.rank in ranks]
    foreign_records = [record for pod in pods for record in pod.records if record.rank not in ranks]
    all_known = not problems and not foreign_records
    usable = [record for record in records if record.trusted]
    sections = [
        (record, digest_reports.refined(section, record.blocks))
        for record in usable
        if (section := record.summary.of_run(run or ""))  # type: ignore[union-attr]
    ]
    owned = [
        Owned(record.rank or 0, record, claim) for record, section in sections for claim in section.metrics
    ]
    groups = [(record.rank or 0, group) for record, section in sections for group in section.groups]
    differences = compare(owned, groups, rows, all_known=all_known)
    unfinished = [record for record in records if record.summary is None]
    _before_the_end(unfinished, rows, len(records), differences)
    others_known = set(problems) <= {record.rank for record in unfinished}
    for record in unfinished:
        _blocks_before_the_end(record, run, rows, _of_others(record, records, others_known), differences)
    contradicted = any(record.contradiction for record in records)
    return [
        _complete(problems, foreign_records, differences, usable, contradicted=contradicted),
        _client_kept(usable, run),
        *_points(differences, problems, label),
        _logged(usable, ranks, problems),
    ]


def _problem(rank: int, pods: list[PodRecord], run: str | None) -> str:
    """Return the reason why a rank's points are not known, or ""."""
    own = [(pod, record) for pod in pods for record in pod.of_rank(rank)]
    if not own:
        other_lines = sum(pod.others for pod in pods)
        reason = (
            f"; the logs contain {counted(other_lines, 'line')} with another owner's UID"
            if other_lines
            else ""
        )
        absent = next((f" ({pod.pod}: {pod.absent})" for pod in pods if rank in pod.ranks and pod.absent), "")
        return f"no recorder wrote a line{absent}{reason}"
    if len({record.nonce for _, record in own}) > 1:
        jobs = ", ".join(sorted({pod.pod for pod, _ in own if pod.pod})) or "several pods"
        return f"two jobs have this rank ({jobs}), so it is not known whose points are in the run"
    for pod, record in own:
        reason = record.problem or _of_run(record, run) or _earlier(pod, record)
        if reason:
            return f"{f'{pod.pod}: ' if pod.pod else ''}{reason}"
    other_lines = sum(pod.others for pod in {id(pod): pod for pod, _ in own}.values())
    if other_lines:
        reason = "two jobs wrote to one log, or the lines were forged"
        return f"its log contains {counted(other_lines, 'line')} with another owner's UID: {reason}"
    return ""


def _of_run(record: Record, run: str | None) -> str:
    """Return the reason why a process's points in this run are not known, or ""."""
    summary = record.summary
    assert summary is not None
    if run is None:
        return ""
    section = summary.of_run(run)
    elsewhere = sorted(each.run for each in summary.runs if each.run != run and each.count)
    if section is None:
        return f"it logged to {', '.join(elsewhere)} and not to this run" if elsewhere else ""
    if section.uncounted:
        limit = point_digests.MAX_METRICS
        return (
            f"it logged more than {limit} metrics, so {counted(section.uncounted, 'point')} cannot be "
            "compared"
        )
    return ""


def _earlier(pod: PodRecord, record: Record) -> str:
    """Return the reason why the log may lack an earlier process of the same rank, or ""."""
    assert record.summary is not None
    if pod.lost:
        return pod.lost
    first = min(record.lines)
    if first and pod.whole:
        return f"the log lacks {counted(first, 'line')} at the start of its recorder's output"
    if pod.whole or record.summary.restart == 0 or record.is_child:
        return ""
    return "the beginning of its log was rotated away or not read, so the log may lack an earlier process"


def _complete(
    problems: dict[int, str],
    foreign_records: list[Record],
    differences: Differences,
    usable: list[Record],
    *,
    contradicted: bool,
) -> Finding:
    """Run the `ground-truth-complete` check: every rank has a reliable summary.

    All digests must also be comparable.
    """
    details = [f"rank {rank}: {problem}" for rank, problem in problems.items()]
    details += [
        f"{record.pod or 'a pod'} logged as {_name(record)}, which this job does not have"
        for record in foreign_records
    ]
    details += [text for _, text in differences.open]
    if not details:
        return passed(
            "ground-truth-complete",
            f"{counted(len(usable), 'process', 'processes')} ended with a summary that matches its log lines",
        )
    ranks = {*problems, *(rank for ranks, _ in differences.open for rank in ranks)}
    subject = f"of {names(ranks)} " if ranks else ""
    return not_passed(
        "ground-truth-complete",
        "unification.digests_contradict" if contradicted else "unification.truth_incomplete",
        f"the reports that the recorders {subject}sent to the tracker contradict their lines in the log"
        if contradicted
        else f"the recorders {subject}did not write enough to judge every point",
        details=details,
        ranks=ranks,
    )


def _name(record: Record) -> str:
    return "a process without a rank" if record.rank is None else f"rank {record.rank}"


def _client_kept(usable: list[Record], run: str | None) -> Finding:
    """Run the `client-kept` check: the client queued every value that was passed to it."""
    details: list[str] = []
    ranks: set[int] = set()
    for record in usable:
        summary = record.summary
        assert summary is not None
        texts = [
            f"rank {record.rank}: {reason}: {key!r} ({kind}) at step {first} ({counted(count, 'value')})"
            for key, kind, reason, count, first, _ in summary.omitted
            if not _intended(summary, key, kind, reason)
        ]
        unlisted = summary.left - sum(entry[3] for entry in summary.omitted)
        if unlisted > 0:
            texts.append(f"rank {record.rank}: {counted(unlisted, 'value')} for other reasons")
        section = summary.of_run(run or "")
        for name, sources in section.merged if section is not None else ():
            claim = next((each for each in section.metrics if each.metric == name), None) if section else None
            count = f" ({counted(claim.count, 'point')})" if claim else ""
            rename_text = f"{', '.join(map(repr, sources))} became {name!r}{count}"
            texts.append(f"rank {record.rank}: {rename_text}")
        if texts:
            details += texts
            ranks.add(record.rank or 0)
    if not details:
        return passed("client-kept", "Pluto's client changed no name, value or step")
    text = "Pluto's client did not queue exactly what the ranks logged"
    return not_passed("client-kept", "unification.client_rewrote", text, details=details, ranks=ranks)


def _intended(summary: Summary, key: str, kind: str, reason: str) -> bool:
    """Return whether an omission is intended: the key's only value was None, or the rank does not upload."""
    if reason.startswith(NOOP):
        return not summary.logged
    logged = {claim.metric for section in summary.runs for claim in section.metrics}
    has_other = any(entry[0] == key and entry[1] != NONE for entry in summary.omitted)
    return kind == NONE and not has_other and key not in logged


def _points(differences: Differences, problems: dict[int, str], label: str) -> Iterable[Finding]:
    """Yield the findings about the points in the run."""
    failures: list[tuple[CheckId, str, str, list[tuple[set[int], str]]]] = [
        (
            "no-lost-points",
            "unification.lost_points",
            f"{label} lacks {counted(differences.lost_count, 'point')} that the ranks logged",
            differences.lost,
        ),
        (
            "values",
            "unification.wrong_value",
            f"{label} has values that differ from those logged",
            differences.wrong,
        ),
        (
            "collisions",
            "unification.metric_collision",
            f"ranks logged different values for one metric and step, and {label} can keep only one",
            differences.collided,
        ),
        (
            "no-unexpected-points",
            "unification.foreign_points",
            f"{label} holds points that no rank logged",
            [(set(), text) for text in differences.unexpected],
        ),
    ]
    facts = {
        "no-lost-points": f"all {counted(differences.arrived, 'point')} of the ranks are in {label}",
        "values": f"the digests of {counted(differences.arrived, 'point')} match the logged values",
        "collisions": "no two ranks logged different values for one metric and step",
        "no-unexpected-points": "every point in the run was logged by a rank",
    }
    for name, cause, head, entries in failures:
        if entries:
            ranks = {rank for each, _ in entries for rank in each}
            texts = [text for _, text in entries]
            yield not_passed(name, cause, head, details=texts, ranks=ranks, evidence=EVIDENCE)  # type: ignore[arg-type]
        elif problems or differences.open:
            yield unknown(name, "see ground-truth-complete", ranks=problems)
        else:
            yield passed(name, facts[name], EVIDENCE)


def _logged(usable: list[Record], ranks: Collection[int], problems: dict[int, str]) -> Finding:
    """Run the `ranks-logged` check: at least one rank logged a point.

    An attached job does not declare which of its ranks log, so a rank without points is not a failure.
    """
    counts = dict.fromkeys(sorted(ranks), 0)
    for record in usable:
        assert record.summary is not None
        counts[record.rank or 0] += sum(section.count for section in record.summary.runs)
    if problems:
        return unknown("ranks-logged", f"it is not known what {names(problems)} logged", ranks=problems)
    if not any(counts.values()):
        return not_passed("ranks-logged", "unification.rank_silent", "no rank logged a point", ranks=counts)
    silent_ranks = [rank for rank, count in counts.items() if not count]
    text = f"{names(set(counts) - set(silent_ranks))} logged" + (
        f", and {names(silent_ranks)} logged nothing" if silent_ranks else ""
    )
    return passed(
        "ranks-logged", text, details=[f"{counted(n, 'point')} by rank {r}" for r, n in counts.items() if n]
    )


def _before_the_end(
    unfinished: list[Record], rows: dict[str, Rows], processes: int, differences: Differences
) -> None:
    """Compare the run with the last lines of processes that have no summary.

    Each line contains the number of points across all metrics and runs. If the job has only one process, the
    digest in the line shows whether the run contains these points.
    """
    for record in unfinished:
        last = record.last
        if last is None or record.problem != record.without_summary() or record.rank is None:
            continue
        if processes == 1 and _prefix(rows, last) == last.digest:
            text = f"the {counted(last.points, 'point')} up to its recorder's last line are in the run"
        else:
            arrived = sum(len(each.kept().steps) for each in rows.values())
            if arrived >= last.points:
                continue
            text = (
                f"the run has {counted(arrived, 'point')} in all, fewer than its recorder's last line reports"
            )
        differences.open.append(({record.rank}, f"rank {record.rank}: {text}"))


def _prefix(rows: dict[str, Rows], line: Line) -> str:
    """Return the digest of the run's points up to the time of a recorder's line.

    Returns "" if the run contains more or fewer such points than the line reports.
    """
    until = [each.within(0, line.time_ms).kept() for each in rows.values()]
    if sum(len(each.steps) for each in until) != line.points:
        return ""
    total = sum(sum(each.nodes().values()) for each in until) & MASK
    return digest_lines.short(total, digest_lines.line_bytes(line))


def _of_others(record: Record, records: list[Record], all_known: bool) -> Container[str]:
    """Return the metrics that may have been logged by processes other than the one in `record`."""
    names: set[str] = set()
    for other in records:
        if other is record:
            continue
        names |= set(other.blocks.leaves) if other.blocks is not None else set()
        if not other.trusted or other.summary is None or any(each.groups for each in other.summary.runs):
            return _Everything()
        names |= {claim.metric for each in other.summary.runs for claim in each.metrics}
    return names if all_known else _Everything()


class _Everything:
    """A collection that contains every metric name."""

    def __contains__(self, _: object) -> bool:
        return True


def _blocks_before_the_end(
    record: Record,
    run: str | None,
    rows: dict[str, Rows],
    of_others: Container[str],
    differences: Differences,
) -> None:
    """Compare the run with the blocks that the last line of a process without a summary confirms."""
    blocks = record.blocks
    if blocks is None or blocks.run != run or not blocks.leaves or record.rank is None:
        return
    count = sum(map(len, blocks.leaves.values()))
    arrived = sum(
        compare_blocks(
            record,
            metric,
            leaves,
            rows.get(metric) or Rows(metric),
            alone=metric not in of_others,
            result=differences,
        )
        for metric, leaves in blocks.leaves.items()
    )
    text = (
        f"{arrived} of {counted(count, 'block')} of its points up to its recorder's last line are in the run"
    )
    differences.open.append(({record.rank}, f"rank {record.rank}: {text}"))
