"""Ranks that catch their own exception and exit with 0, and healthy ranks that look similar."""

from __future__ import annotations

from pathlib import Path

import bundles
import pytest
from bundles import at

from harness.evidence.schema.bundle import Verdict
from harness.evidence.schema.ground_truth import TruthRow
from harness.judge import judge

STEPS = 30
BEGAN_MS = 1_795_237_210_000
"""The time of the first point, which is 5:00:10."""


def job(*last: int, metric: str = "loss/rank{rank}") -> bundles.Job:
    """Return a healthy job in which each rank logs one point a second, up to its last step."""
    made = bundles.healthy(len(last))
    for rank, end in enumerate(last):
        rows = [
            TruthRow(
                metric=metric.format(rank=rank), step=step, value=1.0 + step, time_ms=BEGAN_MS + 1000 * step
            )
            for step in range(end + 1)
        ]
        made.retell(rank, rows)
    made.points = [bundles.point(made, rank, row) for rank in range(len(last)) for row in made.rows(rank)]
    made.refresh()
    return made


def caught(job: bundles.Job, rank: int, second: float, error: str = "RuntimeError: bad record 17") -> None:
    """Add an exception that the program caught to the log of a rank's pod."""
    lines = [
        "ERROR:root:training failed",
        "Traceback (most recent call last):",
        '  File "/workspace/train.py", line 30, in main',
        "    step(batch)",
        error,
        "uploaded the log",
    ]
    job.logs[job.pod_name(rank)] = [f"{at(second, True)} {line}" for line in lines]


def verdict(job: bundles.Job, tmp_path: Path) -> Verdict:
    return judge(job.write(tmp_path / "bundle"))


@pytest.mark.parametrize("metric", ["loss/rank{rank}", "loss", "node{rank}/loss"])
def test_a_rank_that_caught_its_exception_is_no_pass(tmp_path: Path, metric: str) -> None:
    """Contract: the rank exited with 0 after step 10 of 29. The names of metrics differ only in the number of
    the rank."""
    made = job(STEPS - 1, 10, metric=metric)
    caught(made, 1, 20.2)
    seen = verdict(made, tmp_path)
    assert (seen.verdict, seen.cause, seen.ranks) == ("UNKNOWN", "rank.stopped_early", [1]), seen.explanation
    assert "step 10" in seen.explanation
    assert "step 29" in seen.explanation
    assert "RuntimeError: bad record 17" in seen.explanation


def test_two_ranks_of_four_that_stopped_are_both_named(tmp_path: Path) -> None:
    made = job(STEPS - 1, 10, STEPS - 1, 12)
    caught(made, 1, 20.2)
    caught(made, 3, 22.2)
    assert verdict(made, tmp_path).ranks == [1, 3]


@pytest.mark.parametrize(
    ("last", "second"),
    [
        ((29, 29), 20.2),  # It went on after the exception.
        ((29, 10), None),  # It had less to do.
        ((29, 10), 15.0),  # It went on for 5 steps after the exception.
        ((29, 28), 38.2),  # It had one batch less.
        ((29, 10), 41.0),  # The others had finished, too.
        ((29, 20, 10), 20.2),  # Rank 1 stopped early without an exception, so the data may be uneven.
    ],
)
def test_healthy_ranks_are_not_accused(tmp_path: Path, last: tuple[int, ...], second: float | None) -> None:
    """Contract: fewer steps alone prove nothing, and neither does an exception in a log."""
    made = job(*last)
    if second is not None:
        caught(made, len(last) - 1, second)
    seen = verdict(made, tmp_path)
    assert seen.verdict == "PASS", seen.explanation
