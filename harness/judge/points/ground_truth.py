"""Read a rank's ground truth across all its attempts, and determine whether it is complete."""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from harness.evidence.io.reader import Bundle
from harness.evidence.kubernetes.objects import Pod, mapping, termination
from harness.evidence.schema.columns import Columns, Part
from harness.evidence.schema.ground_truth import (
    TruthAccount,
    TruthBatching,
    TruthBlock,
    TruthClient,
    TruthCode,
    TruthEnd,
    TruthFault,
    TruthGap,
    TruthInit,
    TruthLeft,
    TruthMetrics,
    TruthRewrite,
    TruthRow,
    TruthSettings,
    TruthStart,
)
from harness.judge.case import Case
from harness.judge.finding import counted
from harness.judge.logs import error_patterns
from harness.judge.points.series import Rows, ascend, bytes_of_rows, extend, put
from harness.workers.ground_truth.point_recorder import BLOCK_ROWS
from harness.workers.ground_truth.truth_frames import row_bytes

DENSE_ROWS, DENSE_MS = 20, 30
"""If a killed rank recorded its last DENSE_ROWS points within DENSE_MS milliseconds, a buffer may have
contained further points."""


@dataclass
class Attempt:
    """The record of one attempt of a rank, from its start until it ended or was killed."""

    start: TruthStart | None = None
    """The attempt's start frame, or None if the recorder did not mark attempts."""
    end: TruthEnd | None = None
    client: TruthClient | None = None
    account: TruthAccount | None = None
    accounted: int = -1
    """The number of points recorded before the last TruthAccount, or -1 if there is none."""
    omissions: dict[tuple[str, str, str], tuple[int, str, str]] = field(default_factory=dict)
    """Values omitted by the client: (count, first step, last step) per (key, type, reason)."""
    code: list[tuple[int, TruthCode]] = field(default_factory=list)
    """Reports about the code that the attempt ran, with line numbers."""
    row_count: int = 0
    blocks: list[TruthBlock] = field(default_factory=list)
    sorted_blocks: list[TruthBlock] = field(default_factory=list)
    """Blocks for metrics with unordered steps. They contain only the points that Pluto keeps.

    For these metrics, they replace `blocks` and the individual points.
    """
    metrics: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The number and digest of each metric's points, for attempts with blocks."""
    steps: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The lowest and highest step of each metric."""
    settings: list[TruthSettings] = field(default_factory=list)
    """The client's settings, one entry per `init`."""
    batch: int = 1
    """The maximum number of points in one frame, or 1 if the rank did not batch points."""
    gaps: int = 0
    fault: str = ""
    """The reason why the recorder that wraps the client failed, or ""."""
    _root: hashlib._Hash = field(default_factory=hashlib.sha256)
    _counts: dict[str, int] = field(default_factory=dict)
    _digests: dict[str, hashlib._Hash] = field(default_factory=dict)
    _times: deque[int] = field(default_factory=lambda: deque(maxlen=DENSE_ROWS))

    @property
    def is_child(self) -> bool:
        """Return whether the attempt is a logging child process of the rank, such as an evaluation script."""
        return self.start is not None and self.start.parent is not None

    @property
    def count(self) -> int:
        return self.row_count + sum(block.count for block in self.blocks)

    @property
    def compared(self) -> list[TruthBlock]:
        """Return the blocks to compare, using `sorted_blocks` for metrics with unordered steps."""
        replaced = {block.metric for block in self.sorted_blocks}
        return [*(block for block in self.blocks if block.metric not in replaced), *self.sorted_blocks]

    @property
    def counts(self) -> dict[str, int]:
        """Map each metric to its number of points, including those in blocks."""
        counts = dict(self._counts)
        for block in self.blocks:
            counts[block.metric] = counts.get(block.metric, 0) + block.count
        return counts

    @property
    def last_ms(self) -> int | None:
        """Return the time of the attempt's last recorded point, in milliseconds since the epoch, or None."""
        return self._times[-1] if self._times else None

    def add(
        self,
        number: int,
        line: TruthAccount
        | TruthBatching
        | TruthBlock
        | TruthClient
        | TruthCode
        | TruthGap
        | TruthFault
        | TruthLeft
        | TruthMetrics
        | TruthSettings
        | TruthEnd,
    ) -> None:
        """Add a record that is not a point. `number` is its line number."""
        if isinstance(line, TruthBlock):
            (self.sorted_blocks if line.kept else self.blocks).append(line)
            self._reach(line.metric, line.first, line.last)
        elif isinstance(line, TruthClient):
            self.client = line
        elif isinstance(line, TruthCode):
            self.code.append((number, line))
        elif isinstance(line, TruthLeft):
            self.omissions |= {(key, kind, reason): entry for key, kind, reason, *entry in line.left}  # type: ignore[misc]
        elif isinstance(line, TruthAccount):
            self.account, self.accounted = line, self.count
        elif isinstance(line, TruthMetrics):
            self.metrics |= {metric: (count, sha256) for metric, count, sha256 in line.metrics}
        elif isinstance(line, TruthBatching):
            self.batch = line.rows
        elif isinstance(line, TruthGap):
            self.gaps += 1
        elif isinstance(line, TruthSettings):
            self.settings.append(line)
        elif isinstance(line, TruthFault):
            self.fault = self.fault or line.text
        else:
            self.gaps += self.end is not None
            self.end = line
            self.metrics |= line.metrics

    def take(self, row: TruthRow) -> None:
        """Count a point and add it to the digests.

        Points must be passed in the order in which they were recorded.
        """
        data = row_bytes(row.metric, row.step, row.value)
        self._root.update(data)
        self._digests.setdefault(row.metric, hashlib.sha256()).update(data)
        self._counts[row.metric] = self._counts.get(row.metric, 0) + 1
        self.row_count += 1
        self._reach(row.metric, row.step, row.step)
        self._times.append(row.time_ms)

    def take_columns(self, columns: Columns, parts: Iterable[Part], by_metric: bool) -> None:
        """Count all points in `columns`, as `take` does. `parts` contains the same points by metric.

        Per-metric digests are slow to compute, and only attempts with blocks need them.
        """
        data = bytes_of_rows(columns)
        self._root.update(data)
        for name, steps, _, _ in parts:
            self._counts[name] = self._counts.get(name, 0) + len(steps)
            low, high = (steps[0], steps[-1]) if ascend(steps) else (min(steps), max(steps))
            self._reach(name, low, high)
        if by_metric:
            for name, line in zip(columns.metrics(), data.splitlines(keepends=True), strict=True):
                self._digests.setdefault(name, hashlib.sha256()).update(line)
        self.row_count += len(columns)
        self._times.extend(columns.times[-DENSE_ROWS:])

    def _reach(self, metric: str, low: int, high: int) -> None:
        """Extend the metric's step range to include `low` and `high`."""
        first, last = self.steps.get(metric, (low, high))
        self.steps[metric] = min(first, low), max(last, high)

    @property
    def dense(self) -> bool:
        """Return whether points were recorded so quickly that some may be missing if the rank was killed."""
        return len(self._times) == DENSE_ROWS and self._times[-1] - self._times[0] <= DENSE_MS

    @property
    def fits(self) -> bool:
        """Return whether the points match the digests in the end record."""
        assert self.end is not None
        if not self.blocks:
            return self._root.hexdigest() == self.end.sha256
        if not self.metrics:
            return True  # With older recorders, the digests of many metrics did not fit into a frame.
        if self.counts != {metric: count for metric, (count, _) in self.metrics.items()}:
            return False
        unblocked = self._digests.keys() - {block.metric for block in self.blocks}
        return all(self._digests[metric].hexdigest() == self.metrics[metric][1] for metric in unblocked)


_READ: WeakKeyDictionary[Bundle, dict[tuple[int, str, frozenset[int] | None], Truth]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Life:
    """One run object in one process, identified by the attempt's index and the number of the `init` call."""

    attempt: int
    init: int = 0
    same_run: bool = True
    """Whether the run object is attached to the same run as the process's first `init`."""


@dataclass
class Truth:
    """One rank's ground truth across all attempts. `incomplete` explains why points may be missing."""

    rank: int
    attempts: list[Attempt] = field(default_factory=list)
    rows: Rows = field(default_factory=dict)
    """The points that the run must contain. If a metric has two points at one step, the later one counts."""
    overwritten: int = 0
    """The number of points that repeated an earlier metric and step. Pluto keeps the latest point."""
    lives: list[Life] = field(default_factory=list)
    """The rank's run objects. A mark in `rows` is an index into this list."""
    superseded: dict[str, set[int]] = field(default_factory=dict)
    """The steps per metric that a later world without this rank repeated. The run need not contain them."""
    scaled_down: bool = False
    """Whether the world continued without this rank because scaling removed its pod."""
    incomplete: str = ""
    suffix: str = ""
    """The suffix of the record's file name. It is ".outside" for the wrapping recorder if the worker also
    records its own points."""
    rewrites: list[TruthRewrite] = field(default_factory=list)
    logs_nothing: bool = False
    """Whether the termination message reports that the rank did not log any points."""

    @property
    def count(self) -> int:
        return sum(attempt.count for attempt in self.attempts)

    @property
    def blocks(self) -> list[TruthBlock]:
        """Return the blocks to compare, using `sorted_blocks` for metrics with unordered steps."""
        return [block for attempt in self.attempts for block in attempt.compared]

    @property
    def sorted_metrics(self) -> set[str]:
        """Return the metrics whose blocks contain all points that Pluto keeps."""
        return {block.metric for attempt in self.attempts for block in attempt.sorted_blocks}

    @property
    def metrics(self) -> set[str]:
        """Return the names of the metrics that the rank logged."""
        return {*self.rows, *(block.metric for block in self.blocks)}

    @property
    def outside(self) -> bool:
        """Return whether the recorder that wraps the client, not the worker, recorded the points."""
        return any(attempt.start is not None and attempt.start.outside for attempt in self.attempts)

    @property
    def own(self) -> list[Attempt]:
        """Return the rank's own attempts, without those of its child processes."""
        return [attempt for attempt in self.attempts if not attempt.is_child] or self.attempts

    @property
    def end(self) -> TruthEnd | None:
        """Return the last attempt's end record, or None.

        An earlier attempt's end record does not count, because the rank was restarted.
        """
        return self.own[-1].end if self.attempts else None

    def client(self, metric: str, step: int) -> TruthClient | None:
        """Return the client's report for the attempt that logged the point, or None."""
        series = self.rows.get(metric)
        mark = series.mark(step) if series is not None else 0  # The mark is an index into `lives`.
        return self.attempts[self.lives[mark].attempt].client if self.lives else None

    @property
    def clients(self) -> list[TruthClient]:
        return [attempt.client for attempt in self.attempts if attempt.client is not None]

    @property
    def path(self) -> str:
        return f"truth/{self.rank}{self.suffix}.jsonl"


def read(case: Case, rank: int, suffix: str = "", children: frozenset[int] | None = None) -> Truth:
    """Return a rank's ground truth. It is cached, because the report needs it again.

    `children` contains the PIDs of the child processes whose points are included, or is None to include all
    of them.
    """
    cache = _READ.setdefault(case.bundle, {})
    key = rank, suffix, children
    if key not in cache:
        cache[key] = _read(case, *key)
    return cache[key]


def _read(case: Case, rank: int, suffix: str, children: frozenset[int] | None) -> Truth:
    truth, mark = Truth(rank, suffix=suffix, scaled_down=rank not in case.ranks), 0
    has_blocks = any(b'"kind":"block"' in line for _, line in case.bundle.lines(truth.path))
    skipped = False
    for number, line in case.bundle.truth_parts(rank, suffix):
        if isinstance(line, TruthStart):
            skipped = children is not None and line.parent is not None and line.pid not in children
        if skipped:
            continue
        if isinstance(line, TruthStart):
            truth.attempts.append(Attempt(line))
            mark = _live(truth, Life(len(truth.attempts) - 1))
            continue
        if not truth.attempts:
            truth.attempts.append(Attempt())
            mark = _live(truth, Life(0))
        attempt = truth.attempts[-1]
        if isinstance(line, TruthRow):
            attempt.take(line)
            truth.overwritten += put(truth.rows, line.metric, line.step, line.value, line.time_ms, mark)
        elif isinstance(line, Columns):
            parts = list(line.series())
            attempt.take_columns(line, parts, has_blocks)
            truth.overwritten += extend(truth.rows, parts, mark)
        elif isinstance(line, TruthRewrite):
            truth.rewrites.append(line)
        elif isinstance(line, TruthInit):
            mark = _live(truth, Life(len(truth.attempts) - 1, line.number, line.same_run))
        else:
            attempt.add(number, line)
    for series in truth.rows.values():
        series.without_times()
    damage = any(ref.startswith(truth.path) for ref in case.bundle.damaged)
    message = {} if suffix else _in_message(case, truth)
    truth.logs_nothing = message.get("count") == 0
    truth.incomplete = _why_incomplete(case, truth, damage, message)
    return truth


def _live(truth: Truth, life: Life) -> int:
    """Add a run object to `truth.lives` if it is new. Return its index, which is the mark of its points."""
    if life not in truth.lives:
        truth.lives.append(life)
    return truth.lives.index(life)


def _in_message(case: Case, truth: Truth) -> dict[str, object]:
    """Return the rank's digest from the termination message of its last attempt's pod, or {}.

    The attempt's own pod is used, because torchrun can move a rank to another node when restarting it.
    """
    start = truth.attempts[-1].start if truth.attempts else None
    pods: list[Pod] = [pod for pods in case.pod_attempts.values() for pod in pods]
    own = [pod for pod in pods if start is not None and start.pod == pod.name]
    latest = case.pods.get(case.node_of(truth.rank))
    for pod in own[-1:] or ([latest] if latest else []):
        terminated = pod.container(case.launch.container, "terminated")
        return mapping(termination(terminated[1])[1], "truth", str(truth.rank)) if terminated else {}
    return {}


def _why_incomplete(case: Case, truth: Truth, damage: bool, message: dict[str, object]) -> str:
    """Return a clause that explains why the ground truth is incomplete, or "" if it is complete."""
    if not case.bundle.has(truth.path):
        return f"no record of it reached the harness{why_unrecorded(case, truth.rank)}"
    reasons = ["its file is damaged"] * damage
    for number, attempt in enumerate(truth.attempts):
        reason = _why_attempt(truth, number, attempt, message)
        reasons += [f"{_which(truth, number)}{reason}"] if reason else []
    if not truth.attempts and not reasons:
        return "its end record is missing after 0 rows"
    return " and ".join(reasons)


def _why_attempt(truth: Truth, number: int, attempt: Attempt, message: dict[str, object]) -> str:
    if attempt.fault or attempt.gaps:
        return (
            f"the recorder around its client: {attempt.fault}"
            if attempt.fault
            else f"{counted(attempt.gaps, 'gap')} in its frames"
        )
    is_last = attempt is truth.own[-1]
    if attempt.end is None:
        return _without_end(truth, number, attempt)
    if attempt.count != attempt.end.count:
        return f"it recorded {counted(attempt.end.count, 'row')}, but the bundle has {attempt.count}"
    if not attempt.fits:
        return "its rows do not match its own counts and digests"
    digest = (message.get("count"), message.get("sha256"))
    if is_last and message and digest not in _of_its_pod(truth, attempt):
        row_count = attempt.end.count
        return f"its termination message ({digest[0]} rows) and its log ({row_count} rows) do not agree"
    return ""


def _without_end(truth: Truth, number: int, attempt: Attempt) -> str:
    """Return the reason why points may be missing from an attempt without an end record, or ""."""
    is_last = attempt is truth.own[-1]
    if not is_last and not attempt.is_child:
        return _cut(truth, number, attempt)
    if is_last and truth.scaled_down and not (attempt.dense or attempt.blocks):
        # The world continued without this rank. The rank's steps are compared with those of rank 0.
        return ""
    if attempt is not truth.own[-1] and attempt.accounted == attempt.count:
        return ""  # A process pool killed the child process after the child had finished its runs.
    return f"its end record is missing after {counted(attempt.count, 'row')}"


def _of_its_pod(truth: Truth, last: Attempt) -> list[tuple[int, str]]:
    """Return (count, digest) for each of the rank's processes in the pod of its last attempt.

    Any of these processes may have written the pod's termination message.
    """
    pod = last.start.pod if last.start else None
    in_pod = [
        one for one in truth.attempts if one is last or (one.start is not None and one.start.pod == pod)
    ]
    return [(one.end.count, one.end.sha256) for one in in_pod if one.end is not None]


def _cut(truth: Truth, number: int, attempt: Attempt) -> str:
    """Return the reason why points may be missing from an attempt that was killed, or "" if all are known.

    The attempt's frames have no gap, and a rank writes a point's frame before it logs the point. Therefore,
    only a rank that was batching points can have logged points without a frame. If the next attempt starts at
    a step that this attempt had recorded, it logs the missing points again, so they are known. Up to one
    frame of points may be missing, or one block beyond the row limit, so the next attempt must have logged at
    least that many further points.
    """
    if not attempt.dense and not attempt.blocks:
        return ""
    max_unframed = (BLOCK_ROWS if attempt.blocks else attempt.batch) - 1
    following = next(one for one in truth.attempts[number + 1 :] if not one.is_child)
    gap_metrics = [
        metric
        for metric, (_, last) in attempt.steps.items()
        if metric not in following.steps
        or (first_step := following.steps[metric][0]) > last + 1
        or (max_unframed and following.counts[metric] - (last + 1 - first_step) < max_unframed)
    ]
    if not gap_metrics:
        return ""
    limit = ", past the row limit (HARNESS_TRUTH_ROWS)" if attempt.blocks else ""
    return (
        f"it was cut off after {counted(attempt.count, 'row')}{limit}, and may have logged more of "
        f"{gap_metrics[0]}"
    )


def _which(truth: Truth, number: int) -> str:
    start = truth.attempts[number].start
    if start is not None and start.parent is not None:
        return f"process {start.pid}, a child of the rank's process {start.parent}: "
    own = [number for number, attempt in enumerate(truth.attempts) if not attempt.is_child] or [number]
    return f"in attempt {own.index(number) + 1} of {len(own)}, " if len(own) > 1 else ""


_RECORDER_MESSAGE = re.compile(rb"\[harness\] the recorder around Pluto's client (.*)")

_WAITING = re.compile(r"\[c10d\].*(addresses of .* cannot be retrieved|failed to connect|has timed out)")
"""Pattern for a log line in which torch reports that it could not reach the rendezvous."""


def why_unrecorded(case: Case, rank: int) -> str:
    """Return a clause that explains why a rank recorded nothing, or "" if this is unknown."""
    pod = case.pods.get(case.node_of(rank))
    log = case.bundle.log(pod.name, case.launch.container) if pod else ""
    lines = case.bundle.lines(log) if log else ()
    messages = [match for _, line in lines if (match := _RECORDER_MESSAGE.search(line))]
    if messages:
        return f": the recorder around Pluto's client {messages[0][1].decode(errors='replace').strip()}"
    if not case.launch.recorder or not case.started(case.node_of(rank)):
        return ""
    tail = case.bundle.tail(log)
    if tail and _WAITING.search(tail[-1][1]):
        return ". The rank logged nothing because it was still waiting for the other ranks"
    cause = error_patterns.read(tail, log).cause or ""
    if cause.startswith(("rendezvous.", "image.")):
        return f". The rank ended before it logged anything ({cause})"
    if not _container_succeeded(case, pod):
        return ""
    return (
        ". No recorder ran: did the program call pluto.init()? Was PYTHONPATH overridden, or Python run "
        "with -I/-E?"
    )


def _container_succeeded(case: Case, pod: Pod | None) -> bool:
    """Return whether the rank's container exited with 0. A failed rank may have ended before logging."""
    terminated = pod.container(case.launch.container, "terminated") if pod else None
    return terminated is not None and terminated[1].get("exitCode") == 0
