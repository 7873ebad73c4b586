"""Judge whether the shared run contains data sent by another job, before, during or after this launch.

For each request, the embedded tracker stores the launch to which the API key belongs. Foreign writers are
therefore found even if their names, steps, values and addresses match those of this launch. If the tracker
does not store launches, the job name, the sender's name and the sender's address decide. Hosted Pluto does
not report any of these, so foreign writers cannot be detected there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from harness.core.checks import CheckId
from harness.evidence.io.column_files import points_of
from harness.evidence.io.reader import Bundle
from harness.evidence.schema.tracker import Attachment, Point, RunWriter, TrackerRun
from harness.judge.case import Case, names
from harness.judge.finding import Finding, counted, not_passed, passed
from harness.judge.points.compare import compact
from harness.judge.points.lost_points import addresses
from harness.judge.points.shared_run import Attached

CHECK: Final[CheckId] = "only-our-job"
_WRITTEN = {
    "attach": ("attached process", "attached processes"),
    "metrics": ("row", "rows"),
    "logs": ("log line", "log lines"),
    "data": ("row of other data", "rows of other data"),
    "files": ("file", "files"),
    "status": ("status report", "status reports"),
    "tags": ("change of its tags", "changes of its tags"),
    "names": ("metric name", "metric names"),
    "config": ("change of its configuration", "changes of its configuration"),
    "heartbeat": ("heartbeat", "heartbeats"),
    "claim": ("claim of its id", "claims of its id"),
}
"""The singular and plural nouns for the objects that each kind of RunWriter counts."""
_COUNTED_ELSEWHERE = {"attach", "metrics", "status"}
"""Kinds of RunWriter that are ignored here, because other evidence files contain their requests."""


@dataclass(frozen=True)
class Trace:
    """Evidence of one or more requests with which another job wrote to the shared run."""

    ref: str
    kind: str
    count: int
    launch: str | None
    sender: str | None
    peer: str | None
    times: tuple[str, ...] = ()
    job: str | None = None
    rank: int | None = None
    point: Point | None = None


@dataclass
class ForeignWriter:
    """Another job that wrote to the shared run. Jobs that the tracker cannot distinguish count as one."""

    launch: str | None
    job: str | None
    ranks: set[int] = field(default_factory=set)
    senders: dict[str, None] = field(default_factory=dict)
    written: Counter[str] = field(default_factory=Counter)
    steps: dict[str, set[int]] = field(default_factory=dict)
    times: list[str] = field(default_factory=list)

    def take(self, trace: Trace) -> None:
        self.job = self.job or trace.job
        self.ranks |= set() if trace.rank is None else {trace.rank}
        if trace.sender or trace.peer:
            sender = repr(trace.sender) if trace.sender else "somebody"
            self.senders[sender + (f" at {trace.peer}" if trace.peer else "")] = None
        self.written[trace.kind] += trace.count
        self.times += [time for time in trace.times if time]
        if trace.point is not None:
            self.steps.setdefault(trace.point.metric, set()).add(trace.point.step)

    @property
    def text(self) -> str:
        """Return a sentence about the job's ranks, its senders, the data that they sent, and the times."""
        launch = f" of launch {self.launch}" if self.launch else ""
        writer = f"job {self.job}{launch}" if self.job else f"another job{launch}"
        writer += f", {names(self.ranks)}" if self.ranks else ""
        amounts = ", ".join(_many(kind, count) for kind, count in self.written.items() if count)
        examples = [f"{metric} {compact(steps)}" for metric, steps in sorted(self.steps.items())[:2]]
        examples += [counted(len(self.steps) - 2, "more metric")] if len(self.steps) > 2 else []
        senders_text = f", by {', '.join(list(self.senders)[:4])}" if self.senders else ""
        span = sorted({min(self.times), max(self.times)}) if self.times else []
        period = f", {' to '.join(span)}" if span else ""
        which = f" ({', '.join(examples)})" if examples else ""
        return f"{writer}: {amounts}{which}{senders_text}{period}"


def _many(kind: str, count: int) -> str:
    singular, plural = _WRITTEN.get(kind, (kind, f"{kind}s"))
    return f"{count} {singular if count == 1 else plural}"


class Own:
    """The API key, names and addresses that identify the requests of this launch to the shared run."""

    def __init__(self, case: Case, attachments: Iterable[Attachment]) -> None:
        attachments = list(attachments)
        pods = [pod for pods in case.pod_attempts.values() for pod in pods]
        self.launches = case.launches
        self.job = case.launch.tracked_as
        self.hosts = {name for pod in pods for name in pod.hostnames}
        self.addresses = {address for pod in pods for address in addresses(pod)}
        self.by_launch = any(one.launch in self.launches for one in attachments)
        """Whether the tracker stores launches and a rank attached with this launch's key."""
        own = [one for one in attachments if self.attached(one)]
        self.senders = {one.name for one in own if one.name is not None}
        self.peers = self.addresses | {one.peer for one in own if one.peer is not None}

    def attached(self, one: Attachment) -> bool:
        """Return whether a process of this launch made the attachment."""
        if self.by_launch or one.launch not in {None, *self.launches}:
            return one.launch in self.launches
        strange_host = bool(self.hosts) and one.hostname is not None and one.hostname not in self.hosts
        strange_peer = bool(self.addresses) and one.peer is not None and one.peer not in self.addresses
        if one.job_name is None:
            return not (strange_host if one.hostname is not None else strange_peer)
        return one.job_name == self.job and not (strange_host and strange_peer)

    def sent(self, launch: str | None, sender: str | None, peer: str | None) -> bool:
        """Return whether a process of this launch sent a request. Arguments that are None are ignored."""
        if self.by_launch or launch not in {None, *self.launches}:
            return launch in self.launches
        own_sender = sender is None or not self.senders or sender in self.senders
        own_peer = peer is None or not self.peers or peer in self.peers
        return own_sender and own_peer


def check(attached: Attached) -> Finding:
    """Run the `only-our-job` check: all data in the shared run was sent by this launch."""
    _, run = attached.shared[0]
    label = attached.label(run.run_id)
    if attached.attachments is None:
        text = f"this tracker does not report who sent what to {label}, so foreign data cannot be detected"
        return passed(CHECK, text)
    own_attachments = [(number, one) for number, one in attached.attachments if one.run_id == run.run_id]
    own = Own(attached.case, (one for _, one in own_attachments))
    traces = list(_traces(attached, own, own_attachments, run))
    if not traces:
        source = "the key of each request" if own.by_launch else "the names and addresses of its senders"
        text = f"according to {source}, everything in {label} is from this job"
        return passed(CHECK, text, ["tracker/attachments.jsonl"])
    jobs: dict[str, ForeignWriter] = {}
    job_of = {trace.sender: trace.job for trace in traces if trace.sender and trace.job}
    for trace in traces:
        job = trace.job or job_of.get(trace.sender or "")
        key = trace.launch or job or trace.sender or trace.peer or ""
        jobs.setdefault(key, ForeignWriter(trace.launch, job)).take(trace)
    refs = list(dict.fromkeys(trace.ref for trace in traces if not trace.point))[:6]
    refs += [trace.ref for trace in traces if trace.point][:2]
    details = [job.text for job in jobs.values()]
    text = f"{label} holds data that another job sent"
    return not_passed(CHECK, "unification.foreign_job", text, details=details, evidence=refs)


def _traces(
    attached: Attached, own: Own, attachments: list[tuple[int, Attachment]], run: TrackerRun
) -> Iterator[Trace]:
    bundle, run_line = attached.case.bundle, attached.shared[0][0]
    for number, one in attachments:
        if not own.attached(one):
            ref, origin = f"tracker/attachments.jsonl:{number}", (one.launch, one.name, one.peer)
            yield Trace(ref, "attach", 1, *origin, (one.at,), job=one.job_name, rank=one.rank)
    for number, writer in bundle.writers():
        if writer.run_id == run.run_id and not _by_us(own, writer):
            count = 0 if writer.kind in _COUNTED_ELSEWHERE else max(writer.rows, writer.requests)
            origin = writer.launch, writer.sender, writer.peer
            yield Trace(
                f"tracker/writers.jsonl:{number}", writer.kind, count, *origin, (writer.first, writer.last)
            )
    for event in run.status_history:
        launch, sender, peer = (_text(event.get(name)) for name in ("launch", "sender", "peer"))
        origin = launch, sender, peer
        if any(origin) and not own.sent(*origin) and event.get("source") == "api":
            at = str(event.get("createdAt") or "")
            yield Trace(f"tracker/runs.jsonl:{run_line}", "status", 1, *origin, (at,))
    for number, point in _points_of_others(bundle, own, run):
        ref, origin = f"tracker/points.jsonl:{number}", (point.launch, point.sender, point.peer)
        yield Trace(ref, "metrics", 1, *origin, (point.received_at,), point=point)


def _points_of_others(bundle: Bundle, own: Own, run: TrackerRun) -> Iterator[tuple[int, Point]]:
    """Yield the run's points that were not sent by this launch, with their line numbers."""
    for number, part in bundle.point_parts():
        origin = part if isinstance(part, Point) else part[0]
        if origin.run_id == run.run_id and not own.sent(origin.launch, origin.sender, origin.peer):
            yield from (
                (number, point) for point in ([part] if isinstance(part, Point) else points_of(*part))
            )


def _by_us(own: Own, writer: RunWriter) -> bool:
    if writer.kind == "claim":
        return writer.launch in own.launches
    return own.sent(writer.launch, writer.sender, writer.peer)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
