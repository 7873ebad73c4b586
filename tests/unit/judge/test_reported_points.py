"""Points from public bug reports about trackers: lost, altered, repeated or out of order."""

from __future__ import annotations

import math
import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import bundles
import pytest
from bundles import point

from harness.evidence.schema.ground_truth import TruthRow
from harness.evidence.schema.tracker import Point

MOST = sys.float_info.max
NAMES = [
    "timing(s)/gen",
    "val/mean@1",
    "a,b",
    "损失",
    "x\u2028y",
    "'q\"",
    "a\\b",
    "../..",
    "<b>",
    "%s",
    "🙂",
    "loss",
]
ODD = "Episode / Total timesteps (mean)"


def row(metric: str, step: int, value: float) -> TruthRow:
    return TruthRow(metric=metric, step=step, value=value, time_ms=1_795_237_210_000 + abs(step) % 1000)


def ramp(metric: str, count: int = 6) -> list[TruthRow]:
    return [row(metric, step, 1 / (step + 3)) for step in range(count)]


Rows = list[TruthRow]
Sent = Callable[[bundles.Job, Rows], list[Point]]


def as_logged(job: bundles.Job, rows: Rows) -> list[Point]:
    return [point(job, 1, one) for one in rows]


def with_(change: Callable[[TruthRow], dict[str, Any]]) -> Sent:
    """Return a function that simulates a tracker that stores each point with these fields changed."""
    return lambda job, rows: [point(job, 1, one, **change(one)) for one in rows]


@dataclass(frozen=True)
class Case:
    """The rows that rank 1 logs, the points that the tracker stores, and the expected verdict."""

    rows: list[TruthRow]
    sent: Sent = as_logged
    cause: str | None = None
    says: str = ""
    advice: str = ""


def finite(one: TruthRow) -> dict[str, Any]:
    return {"value": math.copysign(MOST, one.value)} if math.isinf(one.value) else {}


LOST, WRONG = "unification.lost_points", "unification.wrong_value"
CASES = {
    "NaN, infinity and the smallest double are kept (mlflow #16555, #1234)": Case(
        [row("a", step, value) for step, value in enumerate((math.nan, math.inf, -math.inf, 5e-324, MOST))]
    ),
    "infinity is kept as the largest double (mlflow #22826, fasttrackml #492)": Case(
        [row("a", 1, math.inf), row("a", 2, -math.inf)],
        with_(finite),
        WRONG,
        "In 2 points, infinity became the largest double",
        "no other process",
    ),
    "NaN is kept as 0 (mlflow #1573)": Case(
        [row("a", 1, math.nan)],
        with_(lambda one: {"value": 0.0}),
        WRONG,
        "NaN became 0",
        "no other process",
    ),
    "a value of 16 bits is kept (wandb #3464, slime #245)": Case(
        [row("a", 1, 0.1)],
        with_(lambda one: {"value": 0.10009765625}),
        WRONG,
        "rounded to bfloat16",
        "no other process",
    ),
    "a value of 32 bits is kept (wandb #1598)": Case(
        ramp("a"),
        with_(lambda one: {"value": float(f"{one.value:.6g}")}),
        WRONG,
        "rounded to 6 digits",
        "no other process",
    ),
    "a spawned process writes to the same run (wandb #4990, #6733)": Case(
        ramp("a"),
        lambda job, rows: [
            *as_logged(job, rows),
            *(point(job, 1, one, value=9.0, sender="spawned") for one in rows),
        ],
        WRONG,
        "sent by 'node1'; 'spawned'",
        "who else writes",
    ),
    "each point arrives twice (mlflow-export-import #48, fasttrackml #54)": Case(
        ramp("a"), lambda job, rows: [p for p in as_logged(job, rows) for _ in range(2)]
    ),
    "points arrive out of order (aim #3278, wandb #10628)": Case(
        ramp("a"), lambda job, rows: random.Random(1).sample(as_logged(job, rows), len(rows))
    ),
    "the clock of a node is a week slow": Case(
        ramp("a"), with_(lambda one: {"time_ms": one.time_ms - 7 * 86_400_000})
    ),
    "names with odd characters are kept (verl #119, #984, mlflow #7807)": Case(
        [row(name, step, step) for name in NAMES for step in range(2)]
    ),
    "the characters of a name are replaced (tensorboardX #696)": Case(
        [row(ODD, 3, 1.0)],
        with_(lambda one: {"metric": "Episode_/_Total_timesteps__mean_"}),
        LOST,
        "under the name 'Episode_/_Total_timesteps__mean_'",
    ),
    "a metric is kept under another name": Case(
        ramp("a"), with_(lambda one: {"metric": "loss"}), LOST, "'a' of rank 1 under the name 'loss'"
    ),
    "every step is one too high (wandb #6269)": Case(
        ramp("a"), with_(lambda one: {"step": one.step + 1}), LOST, r"step in the run is shifted by \+1"
    ),
    "a step is rounded as a double": Case(
        [row("a", 2**53 + 1, 1.0)], with_(lambda one: {"step": 2**53}), LOST, "a double can represent"
    ),
    "a tracker has steps of 32 bits (neptune-client #751, mujoco_playground #48)": Case(
        [row("a", 2**32 + 5, 1.0), row("a", 2**32 + 6, 2.0)],
        with_(lambda one: {"step": one.step % 2**32}),
        LOST,
        "The step was reduced to 32 bits",
    ),
    "a counter of 32 bits overflows (track-mjx #32)": Case(
        [*ramp("a"), row("a", -(2**31), 1.0)],
        lambda job, rows: as_logged(job, rows[:-1]),
        LOST,
        "negative step.*overflowed",
    ),
    "steps behind the newest one are dropped (wandb #9449, #5913)": Case(
        [*ramp("a"), *ramp("b", 3)], lambda job, rows: as_logged(job, rows[:6]), LOST, r"b steps 0–2"
    ),
    "a tracker does not distinguish the case of names (mlflow #7857)": Case(
        [*ramp("my Value"), *ramp("my value", 3)],
        with_(lambda one: {"metric": "my value"}),
        LOST,
        r"The run has no metric 'my Value' of rank 1, but has 'my value', which differs only in case",
    ),
    "a name is normalized": Case(
        ramp("val/pre\u0301cision"),
        with_(lambda one: {"metric": "val/pr\xe9cision"}),
        LOST,
        r"name 'val/pr\\xe9cision', which differs only in its Unicode normalization",
    ),
    "a space at the end of a name is removed": Case(
        ramp("loss "),
        with_(lambda one: {"metric": "loss"}),
        LOST,
        r"'loss ' of rank 1 under the name 'loss', which differs only in spaces or invisible characters",
    ),
    "values that are not finite are skipped (neptune-client-scale #299)": Case(
        [row("a", 1, math.nan), row("a", 2, 0.5), row("b", 3, -math.inf)],
        lambda job, rows: [one for one in as_logged(job, rows) if math.isfinite(one.value)],
        LOST,
        r"All missing values are NaN or infinite, and the run has every finite value of rank 1",
    ),
    "after a resume, the first value of a step is kept (wandb #4482, #6717)": Case(
        [*ramp("a", 4), *(row("a", step, 9.0 + step) for step in range(2, 8))],
        lambda job, rows: as_logged(job, [*rows[:4], *rows[6:]]),
        WRONG,
        "In 2 points, the run has an earlier value of the same rank",
        "no other process",
    ),
    "the end of the queue is lost at exit (wandb #9963, aim #2554)": Case(
        ramp("a"), lambda job, rows: as_logged(job, rows[:-2]), LOST, "a steps 4, 5"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_reported_points_are_judged_with_their_reason(judged, name: str) -> None:
    """Contract: unaltered points pass, and altered points are not attributed to another writer."""
    case = CASES[name]
    job = bundles.healthy()
    job.retell(1, case.rows)
    job.points = [one for one in job.points if one.sender != "node1"] + case.sent(job, case.rows)
    verdict = judged(job)
    ranks = [1] if case.cause else []
    assert (verdict.cause, verdict.ranks) == (case.cause, ranks), verdict.explanation
    assert verdict.verdict == ("FAIL" if case.cause else "PASS")
    assert re.search(case.says, verdict.explanation), verdict.explanation
    assert re.search(case.advice, " ".join(verdict.next)), verdict.next


def test_other_values_are_not_called_a_conversion(judged) -> None:
    """Contract: if a conversion does not explain one of the values, another writer may have changed it."""
    rows = [row("a", 1, math.inf), row("a", 2, 0.5)]
    job = bundles.healthy()
    job.retell(1, rows)
    others = [one for one in job.points if one.sender != "node1"]
    job.points = [*others, point(job, 1, rows[0], value=MOST), point(job, 1, rows[1], value=0.75)]
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == (WRONG, [1])
    assert "became" not in verdict.explanation
    assert "who else writes" in verdict.next[-1]
