"""Explain what happened to points missing from the run, and identify the senders of unrecorded points."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from harness.core.clock import seconds
from harness.evidence.kubernetes.objects import Pod, items, mapping
from harness.evidence.schema.columns import Columns
from harness.evidence.schema.ground_truth import TruthClient
from harness.evidence.schema.tracker import Point
from harness.judge.case import Case, names
from harness.judge.finding import counted
from harness.judge.points.compare import Comparison, Recorded, same
from harness.judge.points.ground_truth import Truth
from harness.judge.points.shared_run import Attached, in_mode_noop
from harness.workers.ground_truth.client_rules import sent_name

UNSENT, ACKNOWLEDGED = "unsent", "acknowledged"
NEVER_QUEUED, UNREPORTED, IN_OTHER_RUN = "never queued", "unreported", "in another run"
_STARTED, _EXITING = b"[pluto-sync] INFO: Sync process started", b"[pluto-sync] INFO: Sync process exiting"
_KEY = re.compile(r"401 Unauthorized|API key|HTTP 401")


def outcome(client: TruthClient | None, metric: str, step: int) -> str:
    """Return what happened to a lost point, according to the client's report.

    UNSENT means that the point is still in the client's queue. ACKNOWLEDGED means that the tracker confirmed
    it. NEVER_QUEUED means that it was never in the queue. UNREPORTED means that the client reported nothing
    about it.
    """
    if client is None:
        return UNREPORTED
    if _within(client.unsent.get(metric, []), step):
        return UNSENT
    if _within(client.sent.get(metric, []), step):
        return ACKNOWLEDGED
    return NEVER_QUEUED if client.whole else UNREPORTED


def _in_other_run(truth: Truth, recorded: Recorded, metric: str, step: int) -> bool:
    value = truth.rows[metric][step]
    series = [rows[metric] for rows in recorded.elsewhere.values() if metric in rows]
    return any(step in values and same(values[step], value) for values in series)


def _within(ranges: Iterable[tuple[int, int]], step: int) -> bool:
    return any(first <= step <= last for first, last in ranges)


def explain(case: Case, truths: list[Truth], recorded: Recorded, comparison: Comparison) -> list[str]:
    """Return sentences about what happened to lost points, according to the Pluto clients' reports."""
    counts: dict[str, Counter[int]] = {}
    by_rank = {truth.rank: truth for truth in truths}
    for (rank, metric), steps in comparison.missing.items():
        for step in steps:
            result = outcome(by_rank[rank].client(metric, step), sent_name(metric), step)
            if _in_other_run(by_rank[rank], recorded, metric, step):
                result = IN_OTHER_RUN
            counts.setdefault(result, Counter())[rank] += 1
    rank_names = {result: names(ranks) for result, ranks in counts.items()}
    amounts = {result: f"{ranks.total()} of them" for result, ranks in counts.items()}
    interrupted = {result: _cut_off(case, counts.get(result, ())) for result in (UNSENT, UNREPORTED)}
    sentences = []
    if IN_OTHER_RUN in counts:
        sentences.append(f"{rank_names[IN_OTHER_RUN]} logged {amounts[IN_OTHER_RUN]} to another run")
    if UNSENT in counts:
        errors = [c.error for rank in sorted(counts[UNSENT]) for c in by_rank[rank].clients if c.error]
        reason = f": {errors[0].splitlines()[0]}" if errors else ""
        text = (
            f"the client of {rank_names[UNSENT]} still has {amounts[UNSENT]} in its queue, not sent{reason}"
        )
        sentences += [text, *interrupted[UNSENT]]
    if ACKNOWLEDGED in counts:
        text = f"the tracker acknowledged {amounts[ACKNOWLEDGED]} to the client of {rank_names[ACKNOWLEDGED]}"
        sentences.append(f"{text}, so the client is not the reason")
    if NEVER_QUEUED in counts:
        handed_over = Counter({rank: n for rank, n in counts[NEVER_QUEUED].items() if by_rank[rank].outside})
        if handed_over:
            sentences.append(
                f"{names(handed_over)} handed {handed_over.total()} of them to the client, "
                "but the client's queue never contained them"
            )
        if never_given := counts[NEVER_QUEUED] - handed_over:
            sentences.append(f"{names(never_given)} never gave {never_given.total()} of them to the client")
    if interrupted[UNREPORTED]:
        text = f"the client of {rank_names[UNREPORTED]} reported nothing about {amounts[UNREPORTED]}"
        sentences += [text, *interrupted[UNREPORTED]]
    settings = not_uploaded(truths, {rank for rank, _ in comparison.missing})
    return [*settings, *sentences, *refusals(case)]


def not_uploaded(truths: list[Truth], ranks: Iterable[int]) -> list[str]:
    """Return a sentence for each client setting that prevented the given ranks from uploading."""
    without_upload, shared = set[int](), dict[tuple[str, str], set[int]]()
    for truth in truths:
        for attempt in truth.attempts:
            for one in attempt.settings:
                without_upload |= set() if one.uploads or one.mode == "noop" else {truth.rank}
                if one.queue and attempt.start is not None and attempt.start.pod:
                    shared.setdefault((attempt.start.pod, one.queue), set()).add(truth.rank)
    requested = set(ranks)
    sentences = in_mode_noop(truths, requested)
    if without_upload & requested:
        text = (
            f"the client of {names(without_upload & requested)} was created with sync_process_enabled=False"
        )
        sentences.append(f"{text}, so it has no upload process")
    return sentences + [
        f"{names(sharing)} share one client queue ({queue}), and the first finish() ends the upload for all "
        "of them: give each process its own PLUTO_DIR"
        for (_, queue), sharing in shared.items()
        if len(sharing) > 1 and sharing & requested
    ]


def refusals(case: Case) -> list[str]:
    """Return sentences about this launch's requests that the tracker rejected, for at most two senders."""
    launched, summary = seconds(case.manifest.launched_at) or 0.0, case.bundle.summary
    own_refusals = [
        one for one in (summary.refused if summary else []) if one.launch in {None, *case.launches}
    ]
    after_launch = [one for one in own_refusals if (seconds(one.last) or 0.0) >= launched]
    return [
        f"the tracker rejected {counted(one.count, 'request')} from {one.sender!r} ({one.reason})"
        for one in after_launch[:2]
    ]


@dataclass
class Origin:
    """The senders of points that no rank recorded, and their number for each node of the job."""

    senders: list[str] = field(default_factory=list)
    nodes: dict[int, int] = field(default_factory=dict)
    """Maps each node index to the number of unrecorded points that the node's pod sent."""
    unknown: int = 0
    """The number of unrecorded points from senders that are not known to be pods of this job."""


def origin(attached: Attached, points: Mapping[str, Iterable[int]]) -> Origin:
    """Return the senders of the given points (steps by metric) in the shared run."""
    case, result = attached.case, Origin()
    steps_by_metric = {metric: set(steps) for metric, steps in points.items()}
    shared = {run.run_id for _, run in attached.shared}
    node_of = _nodes(attached)
    senders: dict[str, None] = {}
    for _, part in case.bundle.point_parts() if steps_by_metric else ():
        source = part if isinstance(part, Point) else part[0]
        if source.run_id not in shared:
            continue
        rows: Iterable[tuple[str, int]] = (
            [(part.metric, part.step)] if isinstance(part, Point) else _metric_steps(part[1], steps_by_metric)
        )
        count = sum(step in steps_by_metric.get(metric, ()) for metric, step in rows)
        if not count:
            continue
        if source.sender:
            senders[f"{source.sender!r}" + (f" at {source.peer}" if source.peer else "")] = None
        node = node_of.get(
            source.peer or "", node_of.get(source.sender or "") if source.peer is None else None
        )
        if node is None:
            result.unknown += count
        else:
            result.nodes[node] = result.nodes.get(node, 0) + count
    result.senders = list(senders)
    return result


def _nodes(attached: Attached) -> dict[str, int]:
    """Map each address or process name that belongs to exactly one node to that node's index."""
    candidates: dict[str, set[int]] = {}
    for index, pods in attached.case.pod_attempts.items():
        for pod in pods:
            for address in addresses(pod):
                candidates.setdefault(address, set()).add(index)
    for _, one in attached.attachments or []:
        node = attached.node_of(one)
        if node is not None and one.name:
            candidates.setdefault(one.name, set()).add(node)
    return {key: nodes.pop() for key, nodes in candidates.items() if len(nodes) == 1}


def addresses(pod: Pod) -> Iterator[str]:
    """Yield the pod's IP addresses."""
    for state in pod.history:
        status = mapping(state.object, "status")
        yield from (str(one["ip"]) for one in items(status, "podIPs") if one.get("ip"))
        yield from [str(status["podIP"])] if status.get("podIP") else []


def _metric_steps(columns: Columns, steps_by_metric: Mapping[str, set[int]]) -> Iterable[tuple[str, int]]:
    """Return (metric, step) of each point whose metric is in `steps_by_metric`."""
    return ((name, step) for name, steps, *_ in columns.series() if name in steps_by_metric for step in steps)


def rejected(truths: list[Truth]) -> list[int]:
    """Return the ranks whose clients reported that the tracker rejected their API key."""
    return [truth.rank for truth in truths if any(_KEY.search(client.error) for client in truth.clients)]


def _cut_off(case: Case, ranks: Iterable[int]) -> list[str]:
    """Return a one-item list that names the ranks whose upload processes did not finish, or [].

    The upload process logs one line when it starts and another when it exits.
    """
    interrupted = []
    for rank in sorted(ranks):
        pod = case.pods.get(case.node_of(rank))
        if pod is None:
            continue
        log = case.bundle.log(pod.name, case.launch.container)
        running_count = 0
        for _, line in case.bundle.lines(log):
            running_count += (_STARTED in line) - (_EXITING in line)
        if running_count > 0:
            interrupted.append(rank)
    return [f"the upload process of {names(interrupted)} started but did not finish"] if interrupted else []
