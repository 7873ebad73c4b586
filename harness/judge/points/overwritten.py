"""Find points that a rank logged again with a different value, and judge whether the run lost data.

For each metric and step, Pluto keeps the point with the latest client time. A *life* of a rank is one run
object in one process, so each `init` begins a new life. docs/decisions/028-points-a-rank-overwrote.md defines
when the check fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from harness.judge.case import Restart
from harness.judge.points.compare import compact
from harness.judge.points.ground_truth import Attempt, Life, Truth
from harness.judge.points.series import Series

CLOCK_ERROR = 5.0
"""Maximum difference, in seconds, between the time of a restart in the cluster and the time in the process's
first frame."""
MIN_OVERWRITES = 2
"""A metric with only one step and at least this many overwritten values is probably a mistake."""


class How(Enum):
    """The ways in which a point can be logged twice. Each value is a clause for messages."""

    SAME_LIFE = "the same process logged it again"
    RESTART = "the rank logged it again after a restart that the job allows"
    BY_SCRIPT = "the run script restarted the rank, which logged it again"
    OTHER_LIFE = "another run object of the rank overwrote it"
    AT_ONCE = "two processes of the rank logged it at the same time"
    OLDER_STAYS = "the client's clock went back, so the run shows the value that was logged first"


@dataclass(frozen=True)
class Overwritten:
    """Points of one metric that a rank logged again with different values, in the same or another life."""

    rank: int
    metric: str
    count: int
    where: str
    """The affected steps in words, such as "steps 3–7 (5 points)"."""
    how: How
    who: str = ""
    """A description of the two lives (run objects), if they differ."""
    advice: str = ""

    @property
    def text(self) -> str:
        """Return a description of the overwritten points."""
        processes = f" ({self.who})" if self.who else ""
        text = f"rank {self.rank}: {self.metric} at {self.where}: {self.how.value}{processes}"
        return f"{text}, and {self.advice}" if self.advice else text


def find(truths: list[Truth], restarts: list[Restart]) -> list[Overwritten]:
    """Return the points that their own rank overwrote later, ordered by rank and metric."""
    in_rows = [one for truth in truths for one in _in_rows(truth, restarts)]
    return [*in_rows, *(one for truth in truths for one in _in_blocks(truth))]


def _in_rows(truth: Truth, restarts: list[Restart]) -> Iterator[Overwritten]:
    for metric, series in truth.rows.items():
        for (before, after), steps in series.overwrites.items():
            one, other = truth.lives[before], truth.lives[after]
            if not (one.same_run and other.same_run):
                continue
            older = [step for step in set(steps) if series.older.get(step) == (before, after)]
            for older_stays, places in ((True, older), (False, list(set(steps).difference(older)))):
                if places:
                    kind, processes = _how(truth, one, other, older_stays, restarts), _who(truth, one, other)
                    advice = _one_step(series, len(steps)) if kind is How.SAME_LIFE else ""
                    where = compact(places)
                    yield Overwritten(truth.rank, metric, len(places), where, kind, processes, advice)


def _one_step(series: Series, overwrites: int) -> str:
    """Return a clause for a metric whose values all have the same step, or "" for other metrics.

    Two values at one step can be intended, such as a first value that is replaced with the final one.
    """
    if len(series) > 1 or overwrites < MIN_OVERWRITES:
        return ""
    return f"all {overwrites + 1} values of this metric have the same step: pass the step to run.log"


def _in_blocks(truth: Truth) -> Iterator[Overwritten]:
    """Yield overwritten points beyond the row limit.

    Only the number of these points is known, not the processes that logged them.
    """
    has_several_inits = any(life.init for life in truth.lives)
    for attempt in truth.attempts:
        for block in attempt.sorted_blocks:
            kind = How.OLDER_STAYS if block.older else How.OTHER_LIFE if has_several_inits else How.SAME_LIFE
            if block.again:
                place = f"{block.again} of steps {block.first}–{block.last}"
                yield Overwritten(truth.rank, block.metric, block.again, place, kind)


def _how(truth: Truth, before: Life, after: Life, older_stays: bool, restarts: list[Restart]) -> How:
    one, other = truth.attempts[before.attempt], truth.attempts[after.attempt]
    if one is not other and _at_once(one, other):
        return How.AT_ONCE
    if older_stays:
        return How.OLDER_STAYS
    if before == after:
        return How.SAME_LIFE
    restart = None if one is other else _restart(truth.rank, one, other, restarts)
    if restart is None:
        return How.OTHER_LIFE
    return How.BY_SCRIPT if restart.by_script else How.RESTART


def _at_once(one: Attempt, other: Attempt) -> bool:
    """Return whether two processes in one pod ran at the same time, according to the pod's clock."""
    first, second = sorted((one, other), key=lambda attempt: attempt.start.time_ms if attempt.start else 0)
    if first.start is None or second.start is None or first.start.pod != second.start.pod:
        return False
    if first.start.restart != second.start.restart and not (first.is_child or second.is_child):
        return False
    return first.last_ms is not None and first.last_ms > second.start.time_ms


def _restart(rank: int, one: Attempt, other: Attempt, restarts: list[Restart]) -> Restart | None:
    """Return the allowed restart between two attempts, or None."""
    if one.start is None or other.start is None:
        return None
    allowed = (restart for restart in restarts if restart.allowed and rank in restart.ranks)
    if one.start.pod != other.start.pod:  # The pods' clocks can differ, so times are not compared.
        return next(allowed, None)
    begin, end = sorted((one.start.time_ms / 1000, other.start.time_ms / 1000))
    return next((each for each in allowed if begin - CLOCK_ERROR <= each.at <= end + CLOCK_ERROR), None)


def _who(truth: Truth, before: Life, after: Life) -> str:
    if before.attempt == after.attempt:
        return f"init {before.init + 1} and init {after.init + 1} of one process" if before != after else ""
    starts = [truth.attempts[life.attempt].start for life in (before, after)]
    processes = [
        f"process {start.pid if start.pid is not None else '?'} in pod {start.pod or '?'}" if start else "?"
        for start in starts
    ]
    return " and ".join(processes)
