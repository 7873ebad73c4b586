"""Find a rank that exited with 0 although an exception had ended its work early.

A program can catch its own exception, print it and exit with 0. The rank's pod, torchrun's output and the
rank's record then look like those of a healthy rank. A healthy rank may log fewer steps than the other ranks,
and a healthy program may print an exception that it handled, so neither is sufficient evidence. A rank counts
as stopped only if its log contains a traceback after its last point, and if all healthy ranks logged a metric
up to the same later step after that traceback.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.core import terminal_text
from harness.core.clock import seconds
from harness.judge.case import Case
from harness.judge.points.ground_truth import Truth

MIN_STEPS = 2
"""Minimum number of missing steps. A rank that lacks only one step may have received one batch fewer."""
_SLACK_SECONDS = 0.05
"""Tolerance, in seconds, for comparisons between the time of a log line, set by the container runtime, and
the time of a point, set by the rank."""
_BEGIN = re.compile(r"^(\[rank\d+\]: ?)?Traceback \(most recent call last\):$")
_STACK = re.compile(r"^(\[rank\d+\]: ?)?(\s|$|Traceback |During handling of the |The above exception was )")
_LINE = re.compile(r"^(?P<time>\S+Z) ?(?P<text>.*)$")
_TAIL_LINES = 400


@dataclass(frozen=True)
class Stopped:
    """A rank that stopped early, its last step, the other ranks' last step, and the error in its log."""

    rank: int
    step: int
    others: int
    metric: str
    error: str
    ref: str


def find(case: Case, truths: Sequence[Truth]) -> list[Stopped]:
    """Return the ranks that stopped logging before the other ranks, and printed an exception at that time."""
    logging = [truth for truth in truths if truth.rank in case.logging and not truth.scaled_down]
    if len(logging) < 2 or any(not truth.attempts or truth.superseded for truth in logging):
        return []
    last_steps = {truth.rank: _last_steps(truth) for truth in logging}
    times = {truth.rank: truth.own[-1].last_ms for truth in logging}
    for metric in sorted(set.intersection(*map(set, last_steps.values()))):
        steps = {rank: steps_by_metric[metric] for rank, steps_by_metric in last_steps.items()}
        furthest = max(steps.values())
        behind = [rank for rank, step in steps.items() if step < furthest]
        if not behind or any(furthest - steps[rank] < MIN_STEPS for rank in behind):
            continue
        ahead_ms = [times[rank] for rank in steps if rank not in behind]
        if len(ahead_ms) < len(behind) or None in ahead_ms:
            continue
        stopped = [
            Stopped(rank, steps[rank], furthest, metric.replace("{rank}", str(rank)), *error)
            for rank in behind
            if (error := _error(case, rank, times[rank], min(filter(None, ahead_ms)))) is not None
        ]
        if len(stopped) == len(behind):
            return stopped
    return []


def _last_steps(truth: Truth) -> dict[str, int]:
    """Map each metric to its last step. The rank's number in a metric name is replaced with {rank}."""
    number = re.compile(rf"(?<!\d){truth.rank}(?!\d)")
    return {number.sub("{rank}", metric): high for metric, (_, high) in truth.own[-1].steps.items()}


def _error(case: Case, rank: int, last_ms: int | None, others_ms: int) -> tuple[str, str] | None:
    """Return the last error with a traceback in the log of the rank's pod, and the reference to its line.

    Returns None if there is no such error.

    The traceback must be later than the rank's last point, and earlier than the other ranks' last points.
    """
    pod = case.pods.get(case.node_of(rank))
    if pod is None or last_ms is None:
        return None
    path = case.bundle.log(pod.name, case.launch.container)
    started_at, error, ref = None, "", ""
    for number, line in case.bundle.tail(path, _TAIL_LINES):
        parsed = _LINE.match(line)
        at = seconds(parsed["time"]) if parsed else None
        if parsed is None or at is None:
            continue
        for row in terminal_text.rows(parsed["text"]):
            if _BEGIN.match(row.text):
                started_at, error = at, ""
            elif started_at is not None and not error and not _STACK.match(row.text):
                error, ref = row.text, f"{path}:{number}"
    if started_at is None or not error:
        return None
    is_after = started_at >= last_ms / 1000 - _SLACK_SECONDS
    return (error[:300], ref) if is_after and started_at < others_ms / 1000 else None
