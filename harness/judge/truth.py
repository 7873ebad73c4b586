"""A rank's ground truth over all its attempts, and whether it holds everything that the rank logged."""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from harness.evidence.columns import Columns
from harness.evidence.objects import Pod, mapping, termination
from harness.evidence.reader import Bundle
from harness.evidence.truth_records import (
    TruthBlock,
    TruthClient,
    TruthEnd,
    TruthInit,
    TruthRewrite,
    TruthRow,
    TruthStart,
)
from harness.judge import rows as rows_
from harness.judge import unrecorded
from harness.judge.attempt import Attempt
from harness.judge.case import Case
from harness.judge.finding import counted
from harness.judge.rows import Rows
from harness.workers.ground_truth import BLOCK_ROWS

_READ: WeakKeyDictionary[Bundle, dict[tuple[int, str], Truth]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Life:
    """One run object of one process: the attempt by its number, and its `init` in that process."""

    attempt: int
    init: int = 0
    same_run: bool = True
    """Whether it is attached to the run of the process's first `init`."""


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
    lives: list[Life] = field(default_factory=list)
    """What the marks of `rows` stand for."""
    superseded: dict[str, set[int]] = field(default_factory=dict)
    """metric → steps that a world without this rank made again. The run may lack them."""
    left: bool = False
    """Whether the world went on without this rank, because its pod was scaled away."""
    incomplete: str = ""
    suffix: str = ""
    """".outside" for what was recorded around the client of a worker that also records by itself."""
    rewrites: list[TruthRewrite] = field(default_factory=list)
    known_silent: bool = False
    """The termination message says that the rank logged nothing."""

    @property
    def count(self) -> int:
        return sum(attempt.count for attempt in self.attempts)

    @property
    def blocks(self) -> list[TruthBlock]:
        """Return what must be compared in blocks: those of metrics in disorder as Pluto keeps them."""
        return [block for attempt in self.attempts for block in attempt.compared]

    @property
    def kept_metrics(self) -> set[str]:
        """Return the metrics of which the blocks hold every row that Pluto keeps."""
        return {block.metric for attempt in self.attempts for block in attempt.kept}

    @property
    def metrics(self) -> set[str]:
        """Return the names that the rank logged numbers under."""
        return {*self.rows, *(block.metric for block in self.blocks)}

    @property
    def outside(self) -> bool:
        """Return whether it was recorded around the client, so that each row was handed to the client."""
        return any(attempt.start is not None and attempt.start.outside for attempt in self.attempts)

    @property
    def own(self) -> list[Attempt]:
        """Return the attempts of the rank itself, without those of its children."""
        return [attempt for attempt in self.attempts if not attempt.is_child] or self.attempts

    @property
    def end(self) -> TruthEnd | None:
        """Return the end line of the last attempt.

        The end of an earlier attempt does not end the ground truth.
        """
        return self.own[-1].end if self.attempts else None

    def client(self, metric: str, step: int) -> TruthClient | None:
        """Return the report of the client that was given this row."""
        series = self.rows.get(metric)
        mark = series.mark(step) if series is not None else 0  # as `read` marks it
        return self.attempts[self.lives[mark].attempt].client if self.lives else None

    @property
    def clients(self) -> list[TruthClient]:
        return [attempt.client for attempt in self.attempts if attempt.client is not None]

    @property
    def path(self) -> str:
        return f"truth/{self.rank}{self.suffix}.jsonl"


def read(case: Case, rank: int, suffix: str = "") -> Truth:
    """Read truth/<rank>.jsonl in one pass. It is kept: the report asks for what the judges have read."""
    known = _READ.setdefault(case.bundle, {})
    if (rank, suffix) not in known:
        known[rank, suffix] = _read(case, rank, suffix)
    return known[rank, suffix]


def _read(case: Case, rank: int, suffix: str) -> Truth:
    truth, mark = Truth(rank, suffix=suffix, left=rank not in case.ranks), 0
    has_blocks = any(b'"kind":"block"' in line for _, line in case.bundle.lines(truth.path))
    for number, line in case.bundle.truth_parts(rank, suffix):
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
            truth.overwritten += rows_.put(truth.rows, line.metric, line.step, line.value, line.time_ms, mark)
        elif isinstance(line, Columns):
            parts = list(line.series())
            attempt.take_columns(line, parts, has_blocks)
            truth.overwritten += rows_.extend(truth.rows, parts, mark)
        elif isinstance(line, TruthRewrite):
            truth.rewrites.append(line)
        elif isinstance(line, TruthInit):
            mark = _live(truth, Life(len(truth.attempts) - 1, line.number, line.same_run))
        else:
            attempt.told(number, line)
    for series in truth.rows.values():
        series.without_times()
    damage = any(ref.startswith(truth.path) for ref in case.bundle.damaged)
    said = {} if suffix else _in_message(case, truth)
    truth.known_silent = said.get("count") == 0
    truth.incomplete = _why_incomplete(case, truth, damage, said)
    return truth


def _live(truth: Truth, life: Life) -> int:
    """Return the mark of a life, which is its place in `truth.lives`."""
    if life not in truth.lives:
        truth.lives.append(life)
    return truth.lives.index(life)


def _in_message(case: Case, truth: Truth) -> dict[str, object]:
    """Return the rank's digest from the termination message of its last attempt's pod, or {}.

    torchrun may give a rank to another node when it restarts, so the attempt says which pod to look up.
    """
    start = truth.attempts[-1].start if truth.attempts else None
    pods: list[Pod] = [pod for pods in case.pod_attempts.values() for pod in pods]
    own = [pod for pod in pods if start is not None and start.pod == pod.name]
    latest = case.pods.get(case.node_of(truth.rank))
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
            else f"{counted(attempt.gaps, 'gap')} in its frames"
        )
    last = attempt is truth.own[-1]
    if attempt.end is None:
        return _without_end(truth, number, attempt)
    if attempt.count != attempt.end.count:
        return f"it recorded {attempt.end.count} rows, {attempt.count} are here"
    if not attempt.fits:
        return "its rows do not fit its own counts and digests"
    message = (said.get("count"), said.get("sha256"))
    if last and said and message not in _of_its_pod(truth, attempt):
        here = attempt.end.count
        return f"its termination message ({message[0]} rows) and its log ({here} rows) do not agree"
    return ""


def _without_end(truth: Truth, number: int, attempt: Attempt) -> str:
    """Return why rows of an attempt without an end may be unknown, or ""."""
    last = attempt is truth.own[-1]
    if not last and not attempt.is_child:
        return _cut(truth, number, attempt)
    if last and truth.left and not (attempt.dense or attempt.blocks):
        return ""  # The world went on without this rank. Its steps are compared with those of rank 0.
    if attempt is not truth.own[-1] and attempt.accounted == attempt.count:
        return ""  # A pool killed the child, after it had finished its runs.
    return f"its end is missing after {attempt.count} rows"


def _of_its_pod(truth: Truth, last: Attempt) -> list[tuple[int, str]]:
    """Return what the processes of a rank in one pod ended with. Each of them replaces the rank's message."""
    pod = last.start.pod if last.start else None
    same = [one for one in truth.attempts if one is last or (one.start is not None and one.start.pod == pod)]
    return [(one.end.count, one.end.sha256) for one in same if one.end is not None]


def _cut(truth: Truth, number: int, attempt: Attempt) -> str:
    """Return why rows of an attempt that was cut off may be unknown, or "" when all are known.

    Its frames have no gap, and a rank writes a frame for each row before it logs the row. So only a rank that
    recorded very fast can have logged rows without a frame. These rows are still known when the next attempt
    starts at a step that the cut-off attempt had recorded, because it then logs them again. As many rows as
    a frame or, past the row limit, a block holds may be missing, so the next attempt must have logged as many
    further ones.
    """
    if not attempt.dense and not attempt.blocks:
        return ""
    hidden = (BLOCK_ROWS if attempt.blocks else attempt.batch) - 1
    following = next(one for one in truth.attempts[number + 1 :] if not one.is_child)
    apart = [
        metric
        for metric, (_, last) in attempt.steps.items()
        if metric not in following.steps
        or (begun := following.steps[metric][0]) > last + 1
        or (hidden and following.counts[metric] - (last + 1 - begun) < hidden)
    ]
    if not apart:
        return ""
    limit = ", past the row limit (HARNESS_TRUTH_ROWS)" if attempt.blocks else ""
    return f"it was cut after {attempt.count} rows{limit}, and may have logged more of {apart[0]}"


def _which(truth: Truth, number: int) -> str:
    start = truth.attempts[number].start
    if start is not None and start.parent is not None:
        return f"process {start.pid}, a child of the rank's process {start.parent}: "
    own = [number for number, attempt in enumerate(truth.attempts) if not attempt.is_child] or [number]
    return f"in attempt {own.index(number) + 1} of {len(own)}, " if len(own) > 1 else ""
