"""Points that a second process, a child process or a restarted rank logged at the same steps."""

import math
import os
from collections.abc import Callable
from pathlib import Path

import bundles
import pytest

from harness.evidence import extract
from harness.evidence.schema.bundle import Verdict
from harness.evidence.schema.ground_truth import (
    TruthAccount,
    TruthBlock,
    TruthEnd,
    TruthInit,
    TruthLine,
    TruthRow,
    TruthStart,
)
from harness.judge.case import Restart
from harness.judge.points import overwritten
from harness.judge.points.ground_truth import Attempt, Life, Truth
from harness.judge.points.series import Series
from harness.workers.ground_truth.point_recorder import Recorder
from harness.workers.ground_truth.truth_frames import block_digest, digest

Judged = Callable[[bundles.Job], Verdict]


def relived(job: bundles.Job, *lives: list[TruthLine]) -> bundles.Job:
    """Replace the record of rank 0 with these lines and a matching end. The tracker receives every row."""
    rows = [line for life in lives for line in life if isinstance(line, TruthRow)]
    attempts: list[list[TruthLine]] = []
    for life in lives:
        if isinstance(life[0], TruthStart) or not attempts:
            attempts.append([])
        attempts[-1] += life
    job.truth[0] = []
    for lines in attempts:
        own = [line for line in lines if isinstance(line, TruthRow)]
        end = TruthEnd(count=len(own), sha256=digest((row.metric, row.step, row.value) for row in own))
        job.truth[0] += [*lines, end]
    job.points = [point for point in job.points if not point.metric.endswith("node0")]
    job.points += [bundles.point(job, 0, row) for row in rows]
    return job


def at_steps(first: int, last: int, offset: float, time: int) -> list[TruthLine]:
    return [
        TruthRow(metric="loss/node0", step=step, value=step + offset, time_ms=time + step)
        for step in range(first, last)
    ]


BEGUN = 1_795_237_210_000


def begun(pid: int, time: int, pod: str = "p") -> TruthStart:
    return TruthStart(attempt=f"a{pid}", time_ms=time, pod=pod, pid=pid, outside=True)


def test_an_overwrite_by_the_same_process_is_a_note(judged: Judged) -> None:
    job = relived(
        bundles.healthy(), [begun(7, BEGUN), *at_steps(0, 6, 0.5, BEGUN), *at_steps(2, 4, 0.75, BEGUN + 50)]
    )
    verdict = judged(job)
    assert verdict.verdict == "PASS", verdict
    assert "logged 2 points again with another value" in verdict.explanation
    assert (
        "rank 0: loss/node0 at steps 2, 3 (2 points): the same process logged it again" in verdict.explanation
    )


@pytest.mark.parametrize("values", [2, 6])
def test_metric_whose_values_all_have_one_step_is_explained(judged: Judged, values: int) -> None:
    """Contract: mlflow#221. If a program logs all values with the same step, only the last value is kept."""
    rows = [
        TruthRow(metric="loss/node0", step=0, value=n + 0.5, time_ms=BEGUN + 1000 * n) for n in range(values)
    ]
    verdict = judged(relived(bundles.healthy(), [begun(7, BEGUN), *rows]))
    assert verdict.verdict == "PASS", verdict
    hint = f"and all {values} values of this metric have the same step: pass the step to run.log"
    assert (hint in verdict.explanation) == (values > 2), verdict.explanation


def test_second_init_that_overwrites_first_is_failure(judged: Judged) -> None:
    second = [TruthInit(number=1), *at_steps(0, 3, 0.75, BEGUN + 50)]
    job = relived(bundles.healthy(), [begun(7, BEGUN), *at_steps(0, 6, 0.5, BEGUN), *second])
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "unification.overwritten", [0])
    assert "init 1 and init 2 of one process" in verdict.explanation


def test_a_second_init_that_goes_on_is_no_failure(judged: Judged) -> None:
    second = [TruthInit(number=1), *at_steps(6, 9, 0.75, BEGUN + 50)]
    job = relived(bundles.healthy(), [begun(7, BEGUN), *at_steps(0, 6, 0.5, BEGUN), *second])
    assert judged(job).verdict == "PASS"


def test_a_clock_that_went_back_shows_the_older_value(judged: Judged) -> None:
    job = relived(
        bundles.healthy(), [begun(7, BEGUN), *at_steps(0, 6, 0.5, BEGUN), *at_steps(2, 4, 0.75, BEGUN - 900)]
    )
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "unification.overwritten")
    assert "clock went back" in verdict.explanation


def test_colliding_processes_are_named_with_process_ids(judged: Judged) -> None:
    one = [begun(7, BEGUN), *at_steps(0, 6, 0.5, BEGUN + 100)]
    job = relived(bundles.healthy(), one, [begun(23, BEGUN + 50), *at_steps(0, 6, 0.75, BEGUN + 102)])
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "unification.metric_collision", [0])
    assert "process 7 in pod p and process 23 in pod p" in verdict.explanation


def child(pid: int, time: int, parent: int) -> TruthStart:
    return begun(pid, time).model_copy(update={"parent": parent})


def test_a_child_process_with_other_steps_is_no_restart(judged: Judged) -> None:
    one = [begun(7, BEGUN), *at_steps(0, 6, 0.5, BEGUN + 100)]
    verdict = judged(
        relived(bundles.healthy(), one, [child(23, BEGUN + 50, 7), *at_steps(6, 9, 0.5, BEGUN + 200)])
    )
    assert verdict.verdict == "PASS", verdict.explanation
    assert "rank 0: 2" not in verdict.explanation


@pytest.mark.parametrize(
    ("cut", "message"), [(0, "rank 0: its end record is"), (1, "process 23, a child of the rank's")]
)
def test_rank_and_child_records_each_need_an_end(judged: Judged, cut: int, message: str) -> None:
    """Contract: the end of a child process is not the end of the rank, and vice versa."""
    one = [begun(7, BEGUN), *at_steps(0, 6, 0.5, BEGUN + 100)]
    job = relived(bundles.healthy(), one, [child(23, BEGUN + 50, 7), *at_steps(6, 9, 0.5, BEGUN + 200)])
    ends = [at for at, line in enumerate(job.truth[0]) if isinstance(line, TruthEnd)]
    del job.truth[0][ends[cut]]
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "unification.truth_incomplete")
    assert message in verdict.explanation


@pytest.mark.parametrize(("more", "verdict"), [(0, "PASS"), (1, "UNKNOWN")])
def test_a_pool_child_killed_after_its_work_is_complete(judged: Judged, more: int, verdict: str) -> None:
    one = [begun(7, BEGUN), *at_steps(0, 6, 0.5, BEGUN + 100)]
    account = TruthAccount(handed=2, logged=2, left=0)
    rest = at_steps(8, 8 + more, 0.5, BEGUN + 200)
    lines = [child(23, BEGUN + 50, 7), *at_steps(6, 8, 0.5, BEGUN + 200), account, *rest]
    job = relived(bundles.healthy(), one, lines)
    job.truth[0].pop()
    assert judged(job).verdict == verdict


def test_child_and_its_rank_collide_with_both_process_ids(judged: Judged) -> None:
    one = [begun(7, BEGUN), *at_steps(0, 6, 0.5, BEGUN + 100)]
    verdict = judged(
        relived(bundles.healthy(), one, [child(23, BEGUN + 50, 7), *at_steps(0, 6, 0.75, BEGUN + 102)])
    )
    assert (verdict.verdict, verdict.cause) == ("FAIL", "unification.metric_collision")
    assert "process 7 in pod p and process 23 in pod p" in verdict.explanation


def test_a_second_process_without_a_restart_overwrites_points(judged: Judged) -> None:
    one = [begun(7, BEGUN), *at_steps(0, 6, 0.5, BEGUN)]
    job = relived(bundles.healthy(), one, [begun(23, BEGUN + 500), *at_steps(0, 2, 0.75, BEGUN + 600)])
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "unification.overwritten")


@pytest.mark.parametrize(
    ("by_script", "how"), [(False, overwritten.How.RESTART), (True, overwritten.How.BY_SCRIPT)]
)
def test_who_started_the_rank_again_is_told(by_script: bool, how: overwritten.How) -> None:
    """Contract: a restart by a loop in the run script is not one that the job allows."""
    truth = Truth(0, [Attempt(begun(7, BEGUN)), Attempt(begun(23, BEGUN + 500))])
    truth.lives = [Life(0, 0, True), Life(1, 0, True)]
    series = Series()
    for value, mark in ((0.5, 0), (0.75, 1)):
        series.put(3, value, BEGUN + mark, mark)
    truth.rows = {"loss": series}
    restart = Restart(BEGUN / 1000, [0], "again", allowed=True, by_script=by_script)
    assert [one.how for one in overwritten.find([truth], [restart])] == [how]


def past_the_limit(tmp_path: Path, rows: list[tuple[str, int, float]], limit: int) -> bundles.Job:
    """Return a healthy job whose rank 0 logged these rows through the real recorder, beyond the row limit."""
    fd = os.memfd_create("truth")
    recorder = Recorder(bundles.NONCE, 0, row_limit=limit, fd=fd)
    for number, row in enumerate(rows):
        recorder.record(*row, time_ms=BEGUN + number)
    recorder.end(output_dir=str(tmp_path))
    lines = os.pread(fd, 10**8, 0).decode().splitlines()
    os.close(fd)
    job = bundles.healthy()
    job.truth[0] = extract(lines, bundles.NONCE)[0]
    job.points = [point for point in job.points if not point.metric.endswith("node0")]
    for number, (metric, step, value) in enumerate(rows):
        row = TruthRow(metric=metric, step=step, value=value, time_ms=BEGUN + number)
        job.points.append(bundles.point(job, 0, row))
    return job


DISORDER = [
    *(("loss/node0", step, step / 7) for step in range(2500)),
    *(("loss/node0", step, step / 3) for step in range(1000, 1200)),
    *(("loss/node0", 7, 0.25) for _ in range(3)),
]


def test_decreasing_steps_past_the_row_limit_still_pass(judged: Judged, tmp_path: Path) -> None:
    verdict = judged(past_the_limit(tmp_path, DISORDER, 300))
    assert verdict.verdict == "PASS", verdict
    assert "logged 201 points again with another value" in verdict.explanation


@pytest.mark.parametrize(
    "cause", ["unification.lost_points", "unification.wrong_value", "unification.foreign_points"]
)
def test_decreasing_steps_past_the_row_limit_hide_no_difference(
    judged: Judged, tmp_path: Path, cause: str
) -> None:
    job = past_the_limit(tmp_path, [row for row in DISORDER if row[1] != 1100], 300)
    place = next(n for n, point in enumerate(job.points) if point.step == 1150)
    if cause == "unification.lost_points":
        job.points = [point for point in job.points if point.step != 1150]
    elif cause == "unification.wrong_value":
        job.points = [point for point in job.points if point.step != 1150 or point is job.points[place]]
    else:
        job.points.append(job.points[place].model_copy(update={"step": 1100}))
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", cause), verdict


@pytest.mark.parametrize(("logged", "kept"), [(-0.0, 0.0), (0.0, -0.0), (-0.0, -0.0)])
@pytest.mark.parametrize("raw", [False, True], ids=["block-of-today", "block-of-an-older-harness"])
def test_the_sign_of_a_zero_does_not_count(judged, logged: float, kept: float, raw: bool) -> None:
    """Contract: 0.0 and -0.0 are equal in rows and in blocks, because hosted Pluto's JSON loses the sign.

    An older harness kept the sign in the digest of a block, which matches only if the tracker keeps the sign
    too.
    """
    job = bundles.healthy()
    rows = [TruthRow(metric="late", step=s, value=logged, time_ms=2_000 + s) for s in range(3)]
    every = [(row.metric, row.step, row.value) for row in rows]
    sha256 = digest(every) if raw else block_digest(every)
    block = TruthBlock(metric="late", first=0, last=2, count=3, sha256=sha256)
    before = job.rows(1)
    whole = [(row.metric, row.step, row.value) for row in before + rows]
    names = dict.fromkeys(metric for metric, _, _ in whole)
    metrics = {m: (sum(r[0] == m for r in whole), digest(r for r in whole if r[0] == m)) for m in names}
    job.truth[1] = [*before, block, TruthEnd(count=len(whole), sha256=digest(whole), metrics=metrics)]
    job.points += [bundles.point(job, 1, row.model_copy(update={"value": kept})) for row in rows]
    job.refresh()
    found = judged(job)
    if raw and math.copysign(1, logged) < 0 < math.copysign(1, kept):
        assert (found.verdict, found.cause) == ("FAIL", "unification.wrong_value")
    else:
        assert found.verdict == "PASS", found.explanation
