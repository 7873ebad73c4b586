"""Read the injected recorders' lines in an attached job's logs, and the points in the job's run."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator

from harness.core.clock import seconds
from harness.evidence.io.files import inside
from harness.evidence.io.reader import Bundle
from harness.evidence.kubernetes.objects import Pod, items, mapping
from harness.evidence.schema.columns import Part
from harness.evidence.schema.tracker import Point
from harness.judge.case import Case, names
from harness.judge.points import digest_records
from harness.judge.points.digest_records import PodRecord, Record, Summary

LATE_SECONDS, BEGIN_SECONDS = 60.0, 5.0
"""A log is assumed to be complete from its beginning if its first line was written at most LATE_SECONDS after
the container's start. For logs larger than LARGE, the limit is BEGIN_SECONDS."""
LARGE = 1 << 20
"""Logs larger than this, in bytes, may have been rotated soon after the start. The kubelet keeps 10 MiB."""
_EXISTING = re.compile(rb"Using existing sync process \(PID: (\d+)\)")
_TAIL = "only its last"
"""Part of the gap message for a log that was read only from its end (harness/attach/logs.py)."""


def is_admitted(case: Case) -> bool:
    """Return whether an admission policy injected a recorder into a pod of an attached job."""
    if not case.launch.attached or case.launch.recorder:
        return False
    pods = (pod for pods in case.pod_attempts.values() for pod in pods)
    return any(digest_records.nonce_of(pod.last.object, case.launch.container) for pod in pods)


def records(case: Case) -> list[PodRecord]:
    """Return the records of all pods of the job, including the pods of earlier attempts."""
    pod_records = []
    for index, pods in case.pod_attempts.items():
        for pod in pods:
            pod_records.append(_of_pod(case, index, pod, is_last=pod is pods[-1]))
    return pod_records


def _of_pod(case: Case, index: int, pod: Pod, *, is_last: bool) -> PodRecord:
    container = case.launch.container
    ranks = case.ranks_of(index)
    own = ranks[0] if len(ranks) == 1 else None
    nonce = digest_records.nonce_of(pod.last.object, container)
    if not nonce:
        reason = "no recorder was injected into its container"
        return PodRecord(pod.name, "", [], ranks=ranks, absent=reason)
    path = case.bundle.log(pod.name, container)
    begins_late = _begins_late(case, pod, path)
    texts = (line.decode(errors="replace") for _, line in case.bundle.lines(path))
    running = _running(pod, container)
    record_set = digest_records.read(
        texts, nonce, pod=pod.name, rank=own, whole=not begins_late, running=running
    )
    for record in record_set.records:
        if own is not None and record.summary is not None and record.summary.world is None:
            # Without a launcher, the recorder uses the pod's index in its Job, not the rank in the JobSet.
            record.rank = own
    record_set.ranks, record_set.lost = ranks, _missing_log(case, pod)
    if not record_set.records:
        record_set.absent = _absent(case, pod, path, begins_late, is_last=is_last)
    return record_set


def _running(pod: Pod, container: str) -> bool:
    """Return whether a container was running in the last recorded state of its pod."""
    statuses = items(pod.last.object, "status", "containerStatuses")
    status = next((each for each in statuses if each.get("name") == container), {})
    return pod.last.type != "DELETED" and "running" in mapping(status, "state")


def _absent(case: Case, pod: Pod, path: str, begins_late: bool, *, is_last: bool) -> str:
    """Return the reason why a pod's log contains no lines from the recorder injected into the pod."""
    gap = _gap(case, pod)
    if _TAIL in gap:
        return f"{gap.partition(': ')[2]}, and none of them are from the recorder"
    if gap:
        return f"its log could not be read: {gap.partition(': ')[2]}"
    if not case.bundle.has(path):
        return "its log was not read" if is_last else "the log of this earlier pod was not read"
    if begins_late:
        return "the beginning of its log was rotated away"
    return (
        "the recorder was injected into its container, but wrote nothing: Pluto's client created no run, "
        "or the ConfigMap with the recorder's files was missing"
    )


def _gap(case: Case, pod: Pod) -> str:
    """Return the first gap in the log of the rank's container, or ""."""
    return next(iter(case.log_gaps(pod.name)), "")


def _begins_late(case: Case, pod: Pod, path: str) -> bool:
    """Return whether the beginning of a pod's log may be missing."""
    if _TAIL in _gap(case, pod):
        return True
    states = [pod.container(case.launch.container, state) for state in ("running", "terminated")]
    times = [seconds(state[1].get("startedAt")) for state in states if state is not None]
    started_at = min((time for time in times if time is not None), default=None)
    first_line = next((line for _, line in case.bundle.lines(path)), b"")
    first_at = seconds(first_line.partition(b" ")[0].decode(errors="replace"))
    if started_at is None or first_at is None:
        return True
    if first_at - started_at <= BEGIN_SECONDS:
        return False
    return first_at - started_at > LATE_SECONDS or inside(case.bundle.path, path).stat().st_size > LARGE


def _missing_log(case: Case, pod: Pod) -> str:
    """Return the reason why the log of an earlier instance of the rank's container is missing, or ""."""
    for status in items(pod.last.object, "status", "containerStatuses"):
        if status.get("name") != case.launch.container:
            continue
        count = status.get("restartCount") or 0
        previous = any(
            gap.startswith(f"{pod.name}-{case.launch.container} (previous)") for gap in case.manifest.log_gaps
        )
        if count > 1 or (count and previous):
            return (
                f"its container was restarted {count} times, and the kubelet keeps only the log of the "
                "previous execution, so an earlier process may have logged points"
            )
    return ""


def parts(bundle: Bundle, run_id: int) -> Iterator[Part]:
    """Yield a run's raw rows by metric, in arrival order."""
    for _, part in bundle.point_parts():
        if isinstance(part, Point):
            if part.run_id == run_id:
                yield (
                    part.metric,
                    array("q", [part.step]),
                    array("d", [part.value]),
                    array("q", [part.time_ms]),
                )
        elif part[0].run_id == run_id:
            yield from part[1].series()


def elsewhere(pods: Iterable[PodRecord], run_id: int) -> dict[int, dict[int, int]]:
    """Return the number of points that each rank logged to other runs, keyed by rank and then by run id."""
    by_rank: dict[int, dict[int, int]] = {}
    for record in _trusted(pods):
        for section in record.summary.runs if record.summary else ():
            if section.run.isdecimal() and int(section.run) != run_id and section.count:
                counts = by_rank.setdefault(record.rank or 0, {})
                counts[int(section.run)] = counts.get(int(section.run), 0) + section.count
    return by_rank


def unrecorded(pods: Iterable[PodRecord], ranks: Iterable[int]) -> dict[int, str]:
    """Map each rank without a line from a recorder to the reason."""
    pods = list(pods)
    reasons: dict[int, str] = {}
    for rank in ranks:
        if not any(pod.of_rank(rank) for pod in pods):
            absence = next((pod.absent for pod in pods if rank in pod.ranks and pod.absent), "")
            reasons[rank] = absence or "its pod does not exist now"
            if not absence and any(rank in pod.ranks for pod in pods):
                reasons[rank] = "no recorder in its pod wrote a line for this rank"
    return reasons


def world(case: Case, pods: Iterable[PodRecord]) -> tuple[bool | None, str]:
    """Return whether the ranks formed one world according to the recorders, and a sentence about it.

    Without torchrun, each rank must have been in a process group of all ranks. The result is None if
    WORLD_SIZE matches, but neither torchrun nor such a process group was recorded.
    """
    size = case.expected.ranks
    last_records: dict[int, Record] = {}
    for record in _trusted(pods):
        if record.rank is not None and not record.is_child:
            last_records[record.rank] = record
    summaries = {rank: record.summary for rank, record in last_records.items() if record.summary is not None}
    absent = [rank for rank in case.ranks if rank not in last_records]
    if absent:
        return False, f"no recorder reported the world size of {names(absent)}"
    worlds = sorted({each for summary in summaries.values() if (each := _size(summary)) is not None})
    if size == 1 and worlds in ([], [1]):
        return True, "the job has one rank"
    if worlds != [size] or len(last_records) != size:
        sizes_text = ", ".join(map(str, worlds)) or "unknown"
        return False, f"the recorders show a WORLD_SIZE of {sizes_text}, but {size} is expected"
    groups = {rank: summary.group for rank, summary in sorted(summaries.items()) if summary.group is not None}
    for rank, group in groups.items():
        if group.size != size:
            mismatch = f"was in a process group of size {group.size}, according to its recorder"
            return False, f"rank {rank} of {size} {mismatch}"
    numbers = Counter(group.rank for group in groups.values())
    for number, count in numbers.items():
        if count > 1:
            return False, f"{count} ranks were rank {number} of a process group, according to their recorders"
    return _one_world(list(summaries.values()), size)


def _one_world(summaries: list[Summary], size: int) -> tuple[bool | None, str]:
    """Return whether torchrun or a process group joined all `size` ranks, and a sentence about it.

    The result is None if the summaries show neither.
    """
    if all(summary.world is not None and summary.restart is not None for summary in summaries):
        return True, f"torchrun formed one world of all {size} ranks, according to their recorders"
    groups = [summary.group for summary in summaries]
    if all(group is not None and group.met for group in groups):
        text = f"torch.distributed had one process group of all {size} ranks"
        return True, f"{text}, according to their recorders"
    return None, "no torchrun started the ranks, and their logs do not show whether they met in one world"


def _size(summary: Summary) -> int | None:
    """Return WORLD_SIZE, or else the size of the process group, or None if neither is known."""
    return summary.world if summary.world is not None or summary.group is None else summary.group.size


def uploaders(case: Case, ranks: Iterable[int]) -> list[str]:
    """Return a sentence for each rank whose client logged that it uses an existing upload process.

    The client assumes that the process whose PID is in its queue's .sync.pid file is an upload process. If
    that process is a zombie, or if it has reused the PID of an upload process that ended, the client's points
    are not sent.
    """
    texts = []
    for rank in sorted(set(ranks)):
        pod = case.pods.get(case.node_of(rank))
        path = case.bundle.log(pod.name, case.launch.container) if pod else ""
        lines = case.bundle.lines(path) if pod and case.bundle.has(path) else []
        process_ids = [match[1].decode() for _, line in lines if (match := _EXISTING.search(line))]
        if process_ids:
            text = (
                f"the client of rank {rank} handed its points to process {process_ids[-1]}, which it mistook"
            )
            texts.append(f"{text} for its upload process (.sync.pid); give each process its own PLUTO_DIR")
    return texts


def _trusted(pods: Iterable[PodRecord]) -> Iterator[Record]:
    return (record for pod in pods for record in pod.records if record.trusted)
