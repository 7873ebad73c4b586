"""Use the block digests that recorders sent to the tracker to find the steps at which points differ.

The size of the summary in a log is limited, so in a long training run, one digest covers several blocks of
steps. The tracker has a digest for each block (harness/workers/recorder/digest_reports.py). The log contains
a digest of the reports that the tracker acknowledged, and each report contains the hash chain of the log's
lines. If the log and the reports contradict each other, one of them was changed or lost, and neither is used.
All functions are pure except `verify`, which sets fields of the records.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from harness.evidence.schema.tracker import DigestReport
from harness.judge.finding import counted
from harness.judge.points.digest_records import Blocks, Claim, Group, Leaf, PodRecord, Record, Run
from harness.workers.recorder import digest_lines, digest_reports, point_digests
from harness.workers.recorder.digest_lines import Line
from harness.workers.recorder.point_digests import MASK

MAX_REPORT_BYTES = 1 << 20
"""Maximum size of a report in bytes, after decompression. A recorder sends at most 200,000 bytes."""


class _Report(msgspec.Struct, frozen=True):
    process: str
    rank: int | None
    number: int
    line: int
    chain: str
    entries: list[tuple[str, int, int, str, int, int]]


@dataclass
class _Stored:
    """The reports from one process about one run that are stored in the tracker."""

    run: str
    packed: dict[int, str] = field(default_factory=dict)


def verify(pods: Iterable[PodRecord], reports: Iterable[DigestReport] | None, runs: Iterable[int]) -> None:
    """Set `blocks` in each record whose reports match its log. Otherwise, set `contradiction` and `problem`.

    `reports` are the reports stored in the tracker, or None if it stores none or they could not be read.
    `runs` are the runs whose reports were read.
    """
    if reports is None:
        return
    by_process: dict[str, dict[str, _Stored]] = {}
    for one in reports:
        reports_of_run = by_process.setdefault(one.process, {}).setdefault(
            str(one.run_id), _Stored(str(one.run_id))
        )
        reports_of_run.packed[one.number] = one.packed
    run_ids = {str(run) for run in runs}
    for pod in pods:
        for record in pod.records:
            _verify(record, by_process.get(record.attempt, {}), run_ids)


def _verify(record: Record, stored: Mapping[str, _Stored], run_ids: set[str]) -> None:
    if record.conflict:
        return
    declared = record.summary.sent if record.summary is not None else None
    if declared is not None and declared.run not in run_ids:
        return
    candidates = list(stored.values())  # A process reports about one run. All other reports are forged.
    if declared is not None:
        candidates = [stored.get(declared.run, _Stored(declared.run))]
    problems = []
    acknowledged = max((line.reports for line in record.lines.values()), default=0)
    if acknowledged and not candidates:
        count = counted(acknowledged, "report")
        problems = [
            f"the tracker acknowledged {count} of its digests, but none is in the runs that were read: they "
            "were lost or deleted, or the rank logged to another run"
        ]
    for one in candidates:
        result = _fitting(record, one)
        if isinstance(result, Blocks) and not (conflict := _beside_the_summary(record, result)):
            record.blocks = result
            return
        result = result if isinstance(result, str) else conflict
        problems.append(result)
    if problems:
        record.contradiction = problems[0]
        record.problem, record.trusted = problems[0], False


def _fitting(record: Record, stored: _Stored) -> Blocks | str:
    """Return the blocks that the log confirms, or a sentence that describes how the reports contradict it."""
    heads: dict[int, list[Line]] = {}
    for _, line in sorted(record.lines.items()):
        if line.reports:
            heads.setdefault(line.reports, []).append(line)
    last_report = max(heads, default=0)
    count = next(number for number in range(len(stored.packed) + 1) if number not in stored.packed)
    if count < last_report:
        return (
            f"the tracker acknowledged {counted(last_report, 'report')} of its digests, but has only "
            f"{count}: "
            "they were lost or deleted, or its log is forged"
        )
    head = digest_reports.first_head(record.nonce, record.attempt, stored.run)
    blocks = Blocks(stored.run)
    for number in range(count):
        try:
            text = _text(stored.packed[number])
            report = msgspec.json.decode(text, type=_Report)
            leaves = list(_leaves(report))
        except ValueError as error:
            return f"report {number} of its digests in the tracker cannot be read: {str(error)[:100]}"
        logged_line = record.lines.get(report.line)
        if logged_line is not None and logged_line.chain != report.chain:
            return (
                f"report {number} of its digests in the tracker does not match line {report.line} of its "
                "log: one of them was changed"
            )
        head = digest_reports.head_after(head, text)
        for line in heads.get(number + 1, ()):
            if digest_reports.head_text(head) != line.head:
                return (
                    f"the reports of its digests in the tracker, up to report {number}, do not match "
                    f"line {line.number} of its log: one of them was changed"
                )
        if number < last_report:
            for metric, block, leaf in leaves:
                blocks.leaves.setdefault(metric, {})[block] = leaf
    return blocks


def _beside_the_summary(record: Record, blocks: Blocks) -> str:
    """Return a sentence that describes how the blocks contradict the process's summary, or "".

    A block can contain more points than its last report, because a process's last points are not always
    reported.
    """
    summary = record.summary
    section = summary.of_run(blocks.run) if summary is not None else None
    if summary is None or summary.sent is None or section is None:
        return ""
    declared, last_line = summary.sent, record.last
    # The last line does not cover reports that the tracker acknowledged later.
    in_line = last_line is not None and last_line.reports == declared.reports
    complete = in_line and declared.unsent == declared.dropped == 0
    for claim in section.metrics:
        leaves = blocks.leaves.get(claim.metric, {}).values()
        differs = claim.digest and digest_lines.short(_sum(leaves)) != claim.digest
        if (complete and differs) or sum(leaf.points for leaf in leaves) > claim.count:
            return (
                f"its digests of {claim.metric} in the tracker do not match its summary in the log: "
                "one of them was changed"
            )
    return ""


def _text(packed: str) -> bytes:
    """Return a report's bytes as they were sent. Raises ValueError if they cannot be decoded."""
    try:
        data = base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
        return zlib.decompressobj().decompress(data, MAX_REPORT_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from None


def _leaves(report: _Report) -> Iterator[tuple[str, int, Leaf]]:
    """Yield (metric, block, points) for each entry of a report. Raises ValueError if a digest is invalid."""
    for metric, block, points, digest, began_ms, ended_ms in report.entries:
        yield metric, block, Leaf(points, digest_lines.digest_from(digest), began_ms, ended_ms)


def refined(section: Run, blocks: Blocks | None) -> Run:
    """Return a process's claims about a run, with one digest per block if the blocks match the summary.

    A metric's blocks are used if their digests add up to the metric's digest in the summary. The metrics in a
    group are listed if the digests of their blocks add up to the group's digest.
    """
    if blocks is None or blocks.run != section.run:
        return section
    claims = [_refined(claim, blocks.leaves.get(claim.metric, {})) for claim in section.metrics]
    listed_metrics = {claim.metric for claim in claims}
    by_group: dict[int, list[Claim]] = {}
    for metric, leaves in blocks.leaves.items():
        if metric not in listed_metrics:
            by_group.setdefault(digest_lines.group_of(metric), []).append(_claim(metric, leaves))
    groups: list[Group] = []
    for group in section.groups:
        members = by_group.get(group.group, [])
        total = sum(digest_lines.digest_from(claim.digest) for claim in members) & MASK
        if group.digest and len(members) == group.metrics and digest_lines.short(total) == group.digest:
            claims += members
        else:
            groups.append(group)
    return msgspec.structs.replace(section, metrics=claims, groups=groups)


def _refined(claim: Claim, leaves: Mapping[int, Leaf]) -> Claim:
    if (claim.level == 0 and claim.nodes) or not claim.digest:
        return claim
    if digest_lines.short(_sum(leaves.values())) != claim.digest:
        return claim
    return msgspec.structs.replace(claim, level=0, nodes=_nodes(leaves))


def _claim(metric: str, leaves: Mapping[int, Leaf]) -> Claim:
    """Return a process's claim about a metric, derived only from the metric's blocks."""
    size = point_digests.BLOCK_STEPS
    return Claim(
        metric,
        sum(leaf.points for leaf in leaves.values()),
        min(leaves) * size,
        (max(leaves) + 1) * size - 1,
        min(leaf.began_ms for leaf in leaves.values()),
        max(leaf.ended_ms for leaf in leaves.values()),
        0,
        digest_lines.short(_sum(leaves.values())),
        _nodes(leaves),
    )


def _sum(leaves: Iterable[Leaf]) -> int:
    return sum(leaf.digest for leaf in leaves) & MASK


def _nodes(leaves: Mapping[int, Leaf]) -> str:
    return digest_lines.nodes_text({block: leaf.digest for block, leaf in leaves.items()}, ())
