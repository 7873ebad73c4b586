"""List the attempts of ranks that ran more than once, with the rows, times and reason of each attempt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Verdict
from harness.judge.case import Case, Restart
from harness.judge.points.ground_truth import Truth, read
from harness.judge.ranks import restarts

HEADINGS = ("rank", "attempt", "pod", "start – last row", "rows", "why it began")


@dataclass(frozen=True)
class RankAttempt:
    """An attempt of a rank that ran more than once. Times are seconds since the epoch."""

    rank: int
    number: int
    """The number of the attempt, starting at 1."""
    of: int
    pod: str
    """The pod's name, without the launched object's name as a prefix."""
    start: float
    last: float | None
    """The time when the attempt recorded its last row, or None if it did not record any rows."""
    rows: int
    ended: bool
    """Whether the log contains this attempt's end record. If not, the attempt was interrupted."""
    reason: str = ""
    """The cause, time and reason of the restart before this attempt. Empty for the first attempt."""

    def cells(self) -> tuple[str, ...]:
        """Return the cells for a table row, in the order of HEADINGS."""
        times = f"{_clock(self.start)} – {_clock(self.last)}" if self.last else f"from {_clock(self.start)}"
        rows = f"{self.rows}" if self.ended else f"{self.rows}, cut off"
        return f"{self.rank}", f"{self.number} of {self.of}", self.pod, times, rows, self.reason


def truths(bundle: Bundle) -> tuple[Case | None, list[Truth]]:
    """Return the judge's `Case` and each rank's ground truth, or (None, []) if nothing was launched."""
    manifest = bundle.manifest
    if manifest is None or manifest.expected is None or manifest.launch is None:
        return None, []
    case = Case(bundle, manifest, manifest.expected, manifest.launch)
    return case, [read(case, rank) for rank in range(case.expected.ranks)]


def restarted(verdict: Verdict) -> str:
    """Return the explanation of the `restarts` check, or "" if every rank ran once."""
    # The `restarts` check has evidence only if a rank was restarted.
    return next((one.explanation for one in verdict.checks if one.name == "restarts" and one.evidence), "")


def attempts(bundle: Bundle, verdict: Verdict) -> list[RankAttempt]:
    """Return the attempts of all ranks that ran more than once, sorted by rank and time."""
    case, rank_truths = truths(bundle) if restarted(verdict) else (None, [])
    if case is None:
        return []
    rank_restarts, prefix = restarts.all_restarts(case, rank_truths), f"{case.launch.object_name}-"
    return [one for truth in rank_truths for one in _of_rank(truth, rank_restarts, prefix)]


def _of_rank(truth: Truth, all_restarts: list[Restart], prefix: str) -> list[RankAttempt]:
    starts = [attempt.start for attempt in truth.attempts if attempt.start is not None]
    if len(starts) < 2:
        return []
    start_times = [start.time_ms / 1000 for start in starts]
    reasons: dict[int, list[str]] = {}
    for restart in (each for each in all_restarts if truth.rank in each.ranks):
        # A restart is the reason for the attempt that begins next.
        # If clocks differ so much that no attempt begins later, the restart is listed for the last attempt.
        index = next(
            (i for i, begin in enumerate(start_times) if i and begin >= restart.at), len(start_times) - 1
        )
        reasons.setdefault(index, []).append(restart.text)
    return [
        RankAttempt(
            rank=truth.rank,
            number=index + 1,
            of=len(starts),
            pod=(start.pod or "").removeprefix(prefix),
            start=start_times[index],
            last=attempt.last_ms / 1000 if attempt.last_ms is not None else None,
            rows=attempt.count,
            ended=attempt.end is not None,
            reason="; ".join(reasons.get(index, [])),
        )
        for index, (attempt, start) in enumerate(zip(truth.attempts, starts, strict=True))
    ]


def _clock(at: float) -> str:
    """Format the UTC time of day in whole seconds."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"
