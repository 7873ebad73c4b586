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


def newest_only(job: bundles.Job, rows: Rows) -> list[Point]:
    """Return a tracker that drops each point whose step is lower than an earlier one of the rank."""
    return [
        point(job, 1, one)
        for number, one in enumerate(rows)
        if one.step >= max(earlier.step for earlier in rows[: number + 1])
    ]


def without_steps_that_have_nan(job: bundles.Job, rows: Rows) -> list[Point]:
    rejected = {one.step for one in rows if not math.isfinite(one.value)}
    return [point(job, 1, one) for one in rows if one.step not in rejected]


def divided(factor: int) -> Sent:
    """Return a tracker that counts every `factor` steps as one, and keeps the last value of each."""
    return lambda job, rows: [
        point(job, 1, one, step=one.step // factor, time_ms=one.time_ms + one.step) for one in rows
    ]


LONG = "eval/" + "x" * 250
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
    "values are rounded to 4 decimal places (axolotl #3320, transformers #9491)": Case(
        [row("a", 1, 14.846837043762207), row("a", 2, 0.3333333), row("a", 3, 0.00003)],
        with_(lambda one: {"value": round(one.value, 4)}),
        WRONG,
        "In 3 points, the value was rounded to 4 decimal places",
        "no other process",
    ),
    "a loss scale exceeds 16 bits (DeepSpeed #931)": Case(
        [row("scale", 1, 32768.0), row("scale", 2, 65536.0), row("scale", 3, -2097152.0)],
        with_(
            lambda one: {"value": math.copysign(math.inf, one.value) if abs(one.value) > 65504 else one.value}
        ),
        WRONG,
        "In 2 points, the value exceeds the range of 16 bits and became infinite",
        "no other process",
    ),
    "infinity is kept as the largest number of 32 bits": Case(
        [row("a", 1, math.inf), row("a", 2, -math.inf)],
        with_(lambda one: {"value": math.copysign(3.4028234663852886e38, one.value)}),
        WRONG,
        "In 2 points, infinity became the largest number of 32 bits",
        "no other process",
    ),
    "a step is counted per optimizer step (pytorch-lightning #20346)": Case(
        [row("a", step, 1 / (step + 3)) for step in range(0, 12, 2)],
        divided(2),
        LOST,
        "The run counts 2 steps as one",
    ),
    "the last of each 8 values stays (pytorch-lightning #4304)": Case(
        ramp("a", 32), divided(8), LOST, "The run counts 8 steps as one"
    ),
    "each log call is a step (pytorch-lightning #13382, NeMo Speech #15235)": Case(
        ramp("a"),
        with_(lambda one: {"step": 2 * one.step + 1}),
        LOST,
        r"The run has the values of the metric in the same order at other steps: step 0 became 1",
    ),
    "the tracker counts the steps itself (ms-swift #8402)": Case(
        [row("a", step * step + 10, step + 0.5) for step in range(5)],
        lambda job, rows: [point(job, 1, one, step=number) for number, one in enumerate(rows)],
        LOST,
        "The run has the values of the metric in the same order at other steps: step 10 became 0",
    ),
    "steps behind the newest one are explained (PufferDrive #468, ms-swift #7080)": Case(
        [row("a", 4, 1.0), row("eval", 1, 0.5), row("a", 8, 2.0), row("eval", 2, 0.25)],
        newest_only,
        LOST,
        "Every missing point of rank 1 has a lower step than one that the rank had logged before it",
    ),
    "steps that were logged out of order are kept": Case(
        [row("a", 4, 1.0), row("eval", 1, 0.5), row("a", 8, 2.0), row("eval", 2, 0.25), row("a", 3, 3.0)]
    ),
    "long names are shortened to the same one (mlflow #11208, pytorch-lightning #16418)": Case(
        [*ramp(LONG + "/loss"), *(row(LONG + "/accuracy", step, 9.0 + step) for step in range(6))],
        with_(lambda one: {"metric": one.metric[:250]}),
        LOST,
        "the tracker may store several metrics under this name",
    ),
    "two names become the same one (mlflow-export-import #4)": Case(
        [*ramp("loss (mean)"), *(row("loss [mean]", step, 9.0 + step) for step in range(6))],
        with_(lambda one: {"metric": "loss_mean"}),
        LOST,
        "'loss_mean': the tracker may store several metrics under this name",
    ),
    "a value that is not finite rejects its line (LitLogger #57)": Case(
        [
            row(name, step, math.nan if (name, step) == ("a", 2) else 0.5)
            for step in range(4)
            for name in "ab"
        ],
        without_steps_that_have_nan,
        LOST,
        "Every missing point of rank 1 has a step at which the rank also logged NaN or infinity",
    ),
    "only every tenth point stays (aim #3241)": Case(
        ramp("a", 50),
        lambda job, rows: as_logged(job, rows[::10]),
        LOST,
        "the run has exactly one of every 10 points",
    ),
    "points are lost without a rule": Case(
        ramp("a", 12),
        lambda job, rows: as_logged(job, [rows[place] for place in (0, 2, 4, 7, 8)]),
        LOST,
        r"\(7 points\)$",
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


@pytest.mark.parametrize(
    ("logged", "recorded"),
    [
        pytest.param([0.00003, 0.25], [0.0, 0.25], id="a small value became 0"),
        pytest.param([0.5, 2.0], [math.inf, 2.0], id="a small value became infinite"),
        pytest.param([65536.0, 2.0], [-math.inf, 2.0], id="the sign changed"),
        pytest.param([0.31, 0.12345], [0.4, 0.1235], id="only one of two values was rounded"),
    ],
)
def test_unproven_conversions_leave_another_writer_possible(
    judged, logged: list[float], recorded: list[float]
) -> None:
    """Contract: one value that a conversion might explain by chance does not acquit other writers."""
    rows = [row("a", step, value) for step, value in enumerate(logged)]
    job = bundles.healthy()
    job.retell(1, rows)
    others = [one for one in job.points if one.sender != "node1"]
    job.points = [*others, *(point(job, 1, one, value=recorded[one.step]) for one in rows)]
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == (WRONG, [1])
    assert "who else writes" in verdict.next[-1], verdict.explanation


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([row("a", 1, math.nan), row("a", 2, math.inf)], id="only values that are not finite"),
        pytest.param(
            [row(name, step, math.nan if name == "a" else 0.5) for step in range(3) for name in "ab"],
            id="NaN in each step",
        ),
    ],
)
def test_lost_rank_is_not_explained_by_its_nan(judged, rows: Rows) -> None:
    """Contract: if all points of a rank are missing, its values that are not finite prove nothing."""
    job = bundles.healthy()
    job.retell(1, rows)
    job.points = [one for one in job.points if one.sender != "node1"]
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == (LOST, [1])
    assert "infini" not in verdict.explanation, verdict.explanation


@pytest.mark.parametrize(
    ("rows", "recorded"),
    [
        pytest.param([row("a", 2 * n, 0.5) for n in range(4)], [(n, 0.5) for n in range(4)], id="constant"),
        pytest.param(ramp("a", 8), [(0, 0.5), (1, 0.25), (2, 0.125)], id="other values"),
    ],
)
def test_steps_without_matching_values_are_only_lost(
    judged, rows: Rows, recorded: list[tuple[int, float]]
) -> None:
    """Contract: a conversion of steps is reported only if the values prove it."""
    job = bundles.healthy()
    job.retell(1, rows)
    others = [one for one in job.points if one.sender != "node1"]
    job.points = [*others, *(point(job, 1, row("a", step, value)) for step, value in recorded)]
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == (LOST, [1])
    assert "The run counts" not in verdict.explanation
    assert "same order" not in verdict.explanation


@pytest.mark.parametrize("change", [lambda value: round(value, 4), lambda value: float(f"{value:.5g}")])
def test_rounded_copy_of_point_is_another_writers(judged, change: Callable[[float], float]) -> None:
    """Contract: a value that the run also received as logged was not converted on its way."""
    rows = [row("a", 1, 14.846837043762207), row("a", 2, 0.3333333)]
    job = bundles.healthy()
    job.retell(1, rows)
    others = [one for one in job.points if one.sender != "node1"]
    copies = [point(job, 1, one, value=change(one.value), time_ms=one.time_ms + 5) for one in rows]
    job.points = [*others, *as_logged(job, rows), *copies]
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == (WRONG, [1])
    assert "rounded" not in verdict.explanation, verdict.explanation
    assert "who else writes" in verdict.next[-1]
