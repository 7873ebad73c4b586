"""A rank's ground truth over all its attempts, and whether it holds everything that the rank logged."""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, field

from harness.evidence.objects import Pod, mapping, termination
from harness.evidence.truth_records import (
    TruthBlock,
    TruthClient,
    TruthCode,
    TruthEnd,
    TruthFault,
    TruthGap,
    TruthRewrite,
    TruthRow,
    TruthStart,
)
from harness.judge import unrecorded
from harness.judge.case import Case
from harness.workers.truth_frames import row_bytes

Rows = dict[str, dict[int, float]]
"""metric → step → value."""
DENSE_ROWS, DENSE_MS = 20, 30
"""A rank that recorded so many rows in so many ms may have held some back for a longer frame."""


@dataclass
class Attempt:
    """One attempt of a rank: what it recorded from its start to its end, or until it was cut off."""

    start: TruthStart | None = None
    """None when the recorder wrote no attempts."""
    end: TruthEnd | None = None
    client: TruthClient | None = None
    code: list[tuple[int, TruthCode]] = field(default_factory=list)
    """What it said of the code that it ran, each with its line number."""
    row_count: int = 0
    blocks: list[TruthBlock] = field(default_factory=list)
    steps: dict[str, tuple[int, int]] = field(default_factory=dict)
    """metric → its first and last step."""
    gaps: int = 0
    fault: str = ""
    """Why the recorder around the client failed, or ""."""
    _root: hashlib._Hash = field(default_factory=hashlib.sha256)
    _counts: dict[str, int] = field(default_factory=dict)
    _digests: dict[str, hashlib._Hash] = field(default_factory=dict)
    _times: deque[int] = field(default_factory=lambda: deque(maxlen=DENSE_ROWS))

    @property
    def count(self) -> int:
        return self.row_count + sum(block.count for block in self.blocks)

    @property
    def counts(self) -> dict[str, int]:
        """Map each metric to the number of its rows, those in blocks included."""
        counts = dict(self._counts)
        for block in self.blocks:
            counts[block.metric] = counts.get(block.metric, 0) + block.count
        return counts

    @property
    def last_ms(self) -> int | None:
        """Return when it recorded its last row, in milliseconds since the epoch. None without rows."""
        return self._times[-1] if self._times else None

    def take(self, row: TruthRow) -> None:
        """Count and digest one row. Rows must come in the order in which the rank recorded them."""
        data = row_bytes(row.metric, row.step, row.value)
        self._root.update(data)
        self._digests.setdefault(row.metric, hashlib.sha256()).update(data)
        self._counts[row.metric] = self._counts.get(row.metric, 0) + 1
        self.row_count += 1
        first, last = self.steps.get(row.metric, (row.step, row.step))
        self.steps[row.metric] = min(first, row.step), max(last, row.step)
        self._times.append(row.time_ms)

    @property
    def dense(self) -> bool:
        """Return whether its last rows came so fast that a cut-off may have lost some of them."""
        return len(self._times) == DENSE_ROWS and self._times[-1] - self._times[0] <= DENSE_MS

    @property
    def fits(self) -> bool:
        """Return whether its rows match its end line: by the root digest, or by metric if it has blocks."""
        assert self.end is not None
        if not self.blocks:
            return self._root.hexdigest() == self.end.sha256
        if not self.end.metrics:
            return True
        if self.counts != {metric: count for metric, (count, _) in self.end.metrics.items()}:
            return False
        whole = self._digests.keys() - {block.metric for block in self.blocks}
        return all(self._digests[metric].hexdigest() == self.end.metrics[metric][1] for metric in whole)


@dataclass
class Truth:
    """What one rank logged in all its attempts. `incomplete` says why rows may be missing from it."""

    rank: int
    attempts: list[Attempt] = field(default_factory=list)
    rows: Rows = field(default_factory=dict)
    """The rows that the run must hold. Where a metric and step was logged twice, the latest counts."""
    overwritten: int = 0
    """Number of rows that the rank itself logged again for the same metric and step.

    Pluto keeps the latest.
    """
    incomplete: str = ""
    suffix: str = ""
    """".outside" for what was recorded around the client of a worker that also records by itself."""
    rewrites: list[TruthRewrite] = field(default_factory=list)
    known_silent: bool = False
    """The termination message says that the rank logged nothing."""
    _owner: dict[tuple[str, int], int] = field(default_factory=dict)
    """(metric, step) → its attempt, for rows of other attempts than the first."""

    @property
    def count(self) -> int:
        return sum(attempt.count for attempt in self.attempts)

    @property
    def blocks(self) -> list[TruthBlock]:
        return [block for attempt in self.attempts for block in attempt.blocks]

    @property
    def outside(self) -> bool:
        """Return whether it was recorded around the client, so that each row was handed to the client."""
        return any(attempt.start is not None and attempt.start.outside for attempt in self.attempts)

    @property
    def end(self) -> TruthEnd | None:
        """Return the end line of the last attempt.

        The end of an earlier attempt does not end the ground truth.
        """
        return self.attempts[-1].end if self.attempts else None

    def client(self, metric: str, step: int) -> TruthClient | None:
        """Return the report of the client that was given this row."""
        attempt = self._owner.get((metric, step), 0)
        return self.attempts[attempt].client if self.attempts else None

    @property
    def clients(self) -> list[TruthClient]:
        return [attempt.client for attempt in self.attempts if attempt.client is not None]

    @property
    def path(self) -> str:
        return f"truth/{self.rank}{self.suffix}.jsonl"


def read(case: Case, rank: int, suffix: str = "") -> Truth:
    """Read truth/<rank>.jsonl in one pass."""
    truth = Truth(rank, suffix=suffix)
    times: dict[str, dict[int, int]] = {}
    damaged_before = len(case.bundle.damaged)
    for number, line in case.bundle.truth(rank, suffix):
        if isinstance(line, TruthStart):
            truth.attempts.append(Attempt(line))
            continue
        if not truth.attempts:
            truth.attempts.append(Attempt())
        attempt = truth.attempts[-1]
        if isinstance(line, TruthRow):
            attempt.take(line)
            _last_write(truth, line, times.setdefault(line.metric, {}))
        elif isinstance(line, TruthBlock):
            attempt.blocks.append(line)
        elif isinstance(line, TruthClient):
            attempt.client = line
        elif isinstance(line, TruthCode):
            attempt.code.append((number, line))
        elif isinstance(line, TruthRewrite):
            truth.rewrites.append(line)
        elif isinstance(line, TruthGap):
            attempt.gaps += 1
        elif isinstance(line, TruthFault):
            attempt.fault = attempt.fault or line.text
        else:
            attempt.gaps += attempt.end is not None
            attempt.end = line
    damage = len(case.bundle.damaged) > damaged_before
    said = {} if suffix else _in_message(case, truth)
    truth.known_silent = said.get("count") == 0
    truth.incomplete = _why_incomplete(case, truth, damage, said)
    return truth


def _last_write(truth: Truth, row: TruthRow, times: dict[int, int]) -> None:
    """Keep a row as the tracker does: of two rows for one metric and step, the later client time wins."""
    rows = truth.rows.setdefault(row.metric, {})
    if row.step in rows:
        truth.overwritten += 1
        if row.time_ms < times[row.step]:
            return
    rows[row.step], times[row.step] = row.value, row.time_ms
    if len(truth.attempts) > 1:
        truth._owner[row.metric, row.step] = len(truth.attempts) - 1


def _in_message(case: Case, truth: Truth) -> dict[str, object]:
    """Return the rank's digest from the termination message of its last attempt's pod, or {}.

    torchrun may give a rank to another node when it restarts, so the attempt says which pod to look up.
    """
    start = truth.attempts[-1].start if truth.attempts else None
    pods: list[Pod] = [pod for pods in case.pod_attempts.values() for pod in pods]
    own = [pod for pod in pods if start is not None and start.pod == pod.name]
    latest = case.pods.get(truth.rank // case.per_node)
    for pod in own[-1:] or ([latest] if latest else []):
        ended = pod.container(case.launch.container, "terminated")
        return mapping(termination(ended[1])[1], "truth", str(truth.rank)) if ended else {}
    return {}


def _why_incomplete(case: Case, truth: Truth, damage: bool, said: dict[str, object]) -> str:
    """Return in one clause why the ground truth is incomplete, or "" when it is complete."""
    if not case.bundle.has(truth.path):
        return f"nothing of what it recorded reached the harness{unrecorded.why(case, truth.rank)}"
    reasons = ["its file is damaged"] * damage
    for number, attempt in enumerate(truth.attempts):
        why = _why_attempt(truth, number, attempt, said)
        reasons += [f"{_which(truth, number)}{why}"] if why else []
    if not truth.attempts and not reasons:
        return "its end is missing after 0 rows"
    return " and ".join(reasons)


def _why_attempt(truth: Truth, number: int, attempt: Attempt, said: dict[str, object]) -> str:
    if attempt.fault or attempt.gaps:
        return (
            f"the recorder around its client: {attempt.fault}"
            if attempt.fault
            else f"{attempt.gaps} gaps in its frames"
        )
    last = number == len(truth.attempts) - 1
    if attempt.end is None:
        return f"its end is missing after {attempt.count} rows" if last else _cut(truth, number, attempt)
    if attempt.count != attempt.end.count:
        return f"it recorded {attempt.end.count} rows, {attempt.count} are here"
    if not attempt.fits:
        return "its rows do not fit its own counts and digests"
    message = (said.get("count"), said.get("sha256"))
    if last and said and message != (attempt.end.count, attempt.end.sha256):
        here = attempt.end.count
        return f"its termination message ({message[0]} rows) and its log ({here} rows) do not agree"
    return ""


def _cut(truth: Truth, number: int, attempt: Attempt) -> str:
    """Return why rows of an attempt that was cut off may be unknown, or "" when all are known.

    Its frames have no gap, and a rank writes a frame for each row before it logs the row. So only a rank that
    recorded very fast can have logged rows without a frame. These rows are still known when the next attempt
    starts at a step that the cut-off attempt had recorded, because it then logs them again.
    """
    if not attempt.dense and not attempt.blocks:
        return ""
    following = truth.attempts[number + 1]
    apart = [
        metric
        for metric, (_, last) in attempt.steps.items()
        if metric not in following.steps or following.steps[metric][0] > last + 1
    ]
    return f"it was cut after {attempt.count} rows, and may have logged more of {apart[0]}" if apart else ""


def _which(truth: Truth, number: int) -> str:
    return f"in attempt {number + 1} of {len(truth.attempts)}, " if len(truth.attempts) > 1 else ""
