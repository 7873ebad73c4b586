"""Ranks that are restarted. An allowed restart is a PASS that mentions it. For any other restart, the verdict
names who caused it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import bundles
import pytest
from bundles import at
from hypothesis import given, settings
from hypothesis import strategies as st
from process_events import PodEvents, recorded
from restarted_ranks import BEGAN, restarts, twice

from harness.evidence import extract
from harness.evidence.schema.bundle import Verdict
from harness.evidence.schema.ground_truth import TruthEnd, TruthRow, TruthStart
from harness.judge import judge
from harness.workers.ground_truth import point_recorder as ground_truth
from harness.workers.ground_truth.point_recorder import Recorder
from harness.workers.ground_truth.truth_frames import digest

Judged = Callable[[bundles.Job], Verdict]
"""The start time in bundles.healthy(), in milliseconds."""


def test_torchrun_starts_the_ranks_again(judged: Judged) -> None:
    """Contract: if --max-restarts allows the restarts, the verdict is a PASS with their number and
    reasons."""
    job = bundles.healthy()
    twice(job)
    failed = (
        "torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1) local_rank: 0 (pid: 50)"
    )
    job.logs[job.pod_name(1)].insert(1, f"{at(0, True)} E1121 {failed}")
    verdict = judged(job)
    assert verdict.verdict == "PASS", verdict.explanation
    explanation = restarts(verdict).explanation
    assert "torchrun started ranks 0 and 1 again at 2026-11-21T" in explanation
    assert "(restart 1 of at most 1)" in explanation
    assert f"in pod {job.pod_name(1)} local rank 0 failed with exit code 1" in explanation
    assert explanation in verdict.explanation


def lives_past_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *lives: list[tuple[int, float]], row_limit: int = 100
) -> bundles.Job:
    """Return a healthy job whose rank 0 was killed in each attempt except the last one. The attempts log far
    more rows than the row limit."""
    job, time_ms = bundles.healthy(), BEGAN
    job.points = [point for point in job.points if not point.metric.endswith("node0")]
    job.truth[0] = []
    for restart, rows in enumerate(lives):
        fd = os.memfd_create("truth")
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restart))
        monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
        recorder = Recorder(bundles.NONCE, 0, row_limit=row_limit, fd=fd)
        began = time_ms
        for step, value in rows:
            time_ms += 1
            recorder.record("loss/node0", step, value, time_ms=time_ms)
            row = TruthRow(metric="loss/node0", step=step, value=value, time_ms=time_ms)
            job.points.append(bundles.point(job, 0, row))
        if restart == len(lives) - 1:
            recorder.end(output_dir=str(tmp_path))
        lines = extract(os.pread(fd, 10**8, 0).decode().splitlines(), bundles.NONCE)[0]
        os.close(fd)
        job.truth[0] += [
            line.model_copy(update={"time_ms": began, "pod": job.pod_name(0)})
            if isinstance(line, TruthStart)
            else line
            for line in lines
        ]
    return job


def life(steps: Iterable[int], by: int = 7) -> list[tuple[int, float]]:
    return [(step, step / by) for step in steps]


def test_restart_past_row_limit_that_logs_same_again(
    judged: Judged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: a block whose steps were logged again is proved if the run's rows have the block's digest."""
    lives = life(range(2430)), life(range(2000, 4900)), life(range(3900, 6000))
    job = lives_past_the_limit(tmp_path, monkeypatch, *lives)
    verdict = judged(job)
    assert verdict.verdict == "PASS", verdict.explanation
    place = next(n for n, point in enumerate(job.points) if point.step == 500)
    job.points[place] = job.points[place].model_copy(update={"value": 0.5})
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "unification.wrong_value"), verdict.explanation


@pytest.mark.parametrize(
    "lives",
    [(life(range(2430)), life(range(2000, 3000), by=3)), (life(range(2430)), life(range(2400, 3000)))],
    ids=["other values", "after the last block"],
)
def test_restart_past_the_row_limit_that_leaves_rows_unknown(
    judged: Judged,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lives: tuple[list[tuple[int, float]], ...],
) -> None:
    """Contract: if rows of a block were partly replaced, or are in no block, the verdict is UNKNOWN and names
    the setting to change."""
    verdict = judged(lives_past_the_limit(tmp_path, monkeypatch, *lives))
    assert verdict.verdict == "UNKNOWN"
    assert "HARNESS_TRUTH_ROWS" in verdict.explanation


def test_unrepeated_rows_past_the_row_limit_are_unknown(
    judged: Judged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: rows after the last block are known only if the next attempt logged them again."""
    job = lives_past_the_limit(tmp_path, monkeypatch, life(range(2430)), life(range(2000, 2200)))
    job.points = [point for point in job.points if not (point.metric == "loss/node0" and point.step >= 2200)]
    verdict = judged(job)
    assert verdict.verdict == "UNKNOWN", verdict.explanation
    assert "HARNESS_TRUTH_ROWS" in verdict.explanation


@pytest.mark.parametrize(
    ("end", "result"),
    [(210, "UNKNOWN"), (223, "UNKNOWN"), (224, "PASS")],
    ids=["before", "just before", "past"],
)
def test_buffered_rows_of_a_killed_rank_must_be_repeated(
    judged: Judged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: int, result: str
) -> None:
    """Contract: rows that were still buffered when the rank was killed are known only if they were logged
    again."""
    monkeypatch.setattr(ground_truth, "AT_ONCE_PER_SECOND", 0.0)
    monkeypatch.setattr(ground_truth, "AT_ONCE_IN_A_ROW", 5.0)
    job = lives_past_the_limit(
        tmp_path, monkeypatch, life(range(219)), life(range(150, end)), row_limit=200_000
    )
    last = max(step for step, _ in life(range(150, end)))
    job.points = [point for point in job.points if point.metric != "loss/node0" or point.step <= last]
    verdict = judged(job)
    assert verdict.verdict == result, verdict.explanation


def again(job: bundles.Job, rank: int, *, at_ms: int = 4000, whole: bool = False) -> None:
    """Make a rank record some of its rows, and then all rows in a second process with the same torchrun
    restart count."""
    pod, truth = job.pod_name(rank), job.truth[rank]
    rows = [row.model_copy(update={"time_ms": row.time_ms - 4000}) for row in job.rows(rank)[:4]]
    root = digest((row.metric, row.step, row.value) for row in rows)
    end = [TruthEnd(count=len(rows), sha256=root)] if whole else []
    one, two = (
        TruthStart(attempt=name, time_ms=BEGAN - 5000 + later, pod=pod, restart=0, max_restarts=0)
        for name, later in (("a", 0), ("b", at_ms))
    )
    job.truth[rank] = [one, *rows, *end, two, *truth]


@pytest.mark.parametrize(("opens", "result"), [((0,), "PASS"), ((1,), "FAIL"), ((0, 1), "FAIL")])
def test_a_rank_that_becomes_another_program_was_not_restarted(
    judged: Judged, opens: tuple[int, ...], result: str
) -> None:
    """Contract: os.exec by a rank that had finished its runs is not a restart, and does not change torchrun's
    restart count."""
    job = recorded(bundles.healthy())
    again(job, 1)
    for line in job.truth[1]:
        if isinstance(line, TruthStart):
            job.truth[1][job.truth[1].index(line)] = line.model_copy(update={"pid": 20})
    for index in range(2):
        pod = PodEvents(job, index)
        pod.agent(7, "--nnodes=2")
        pod.workers(7, [(20, 0, index, 2)])
        pod.rank(20, index, 2)
        for open_ in opens if index else ():
            pod.end(20, how="exec", open_=open_)
            pod.rank(20, index, 2)
        pod.end(20)
        pod.result(7)
    check = restarts(judged(job))
    assert check.result == result
    assert ("replaced itself with another program (os.exec)" in check.explanation) == any(opens)


def test_a_run_script_loop_is_no_allowed_restart(judged: Judged) -> None:
    """Contract: if torchrun's restart count did not change and no other pod failed, torchrun did not restart
    the rank."""
    job = bundles.healthy()
    again(job, 1)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.restarted", [1])
    assert "torchrun's restart count did not change" in verdict.explanation
    assert "as the job allows" not in restarts(verdict).explanation


def test_a_failure_in_another_pod_proves_a_new_rendezvous(judged: Judged) -> None:
    """Contract: the torchrun agent does not count a restart if the ranks in its own pod did not fail."""
    job = bundles.healthy()
    twice(job)
    for line in job.truth[1]:
        if isinstance(line, TruthStart):
            job.truth[1][job.truth[1].index(line)] = line.model_copy(update={"restart": 0})
    verdict = judged(job)
    assert verdict.verdict == "PASS", verdict.explanation
    assert "torchrun started rank 1 again" in restarts(verdict).explanation
    assert "after a new rendezvous" in restarts(verdict).explanation


def test_two_processes_that_live_at_once_are_no_restart(judged: Judged) -> None:
    job = bundles.healthy()
    again(job, 1, at_ms=500)
    finding = restarts(judged(job))
    assert finding.result == "PASS"
    assert "2 processes of rank 1 logged at the same time" in finding.explanation
    assert "started rank" not in finding.explanation


def test_processes_one_after_the_other_are_no_restart(judged: Judged) -> None:
    job = bundles.healthy()
    again(job, 1, whole=True)
    finding = restarts(judged(job))
    assert finding.result == "PASS"
    assert "2 processes of rank 1 logged one after the other, and each finished" in finding.explanation


def test_more_restarts_than_torchrun_may_do(judged: Judged) -> None:
    job = bundles.healthy()
    twice(job, restart=2)
    assert (restarts(judged(job)).cause) == "rank.restarted"


def test_the_run_must_hold_the_union_of_the_attempts(judged: Judged) -> None:
    """Contract: a row that only the interrupted attempt logged must be in the run even if there was a later
    attempt."""
    job = bundles.healthy()
    twice(job)
    only = TruthRow(metric="loss/node0", step=99, value=1.5, time_ms=BEGAN - 1000)
    job.truth[0].insert(1, only)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("unification.lost_points", [0])
    job.points.append(bundles.point(job, 0, only))
    assert judged(job).verdict == "PASS"


def test_the_later_value_counts(judged: Judged) -> None:
    """Contract: if two attempts logged the same metric and step, the run must contain the later value."""
    job = bundles.healthy()
    twice(job)
    row = next(line for line in job.truth[1] if isinstance(line, TruthRow))
    job.truth[1][job.truth[1].index(row)] = row.model_copy(update={"value": 77.0})
    assert judged(job).verdict == "PASS"
    job.points = [
        p.model_copy(update={"value": 77.0}) if (p.metric, p.step) == (row.metric, row.step) else p
        for p in job.points
    ]
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("unification.wrong_value", [1])


def test_a_fast_attempt_cut_short_is_an_incomplete_record(judged: Judged) -> None:
    """Contract: if a rank that logged very fast was killed, its rows are known only up to the recorded ones,
    unless the next attempt repeats them."""
    job = bundles.healthy(steps=30)
    for rank in range(2):
        rows = job.rows(rank)
        start = [TruthStart(attempt=str(n), time_ms=BEGAN + n, restart=n, max_restarts=1) for n in range(2)]
        rest = rows[50:]
        root = digest((row.metric, row.step, row.value) for row in rest)
        job.truth[rank] = [start[0], *rows[:40], start[1], *rest, TruthEnd(count=len(rest), sha256=root)]
        job.points = [p for p in job.points if not (p.sender == f"node{rank}" and 20 <= p.step < 25)]
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "unification.truth_incomplete")
    assert "in attempt 1 of 2, it was cut off after 40 rows, and may have logged more" in verdict.explanation


def test_a_last_attempt_without_an_end_is_not_complete(judged: Judged) -> None:
    """Contract: the ground truth is complete only with the end record of the last attempt."""
    job = bundles.healthy()
    whole = list(job.truth[0])
    job.truth[0] = [*whole, TruthStart(attempt="b", time_ms=BEGAN + 9000), *job.rows(0)[:1]]
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "unification.truth_incomplete")
    assert "in attempt 2 of 2, its end record is missing after 1 row" in verdict.explanation


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 11), st.integers(0, 1), st.integers(0, 11))
def test_a_point_that_any_attempt_lost_makes_no_pass(kept: int, rank: int, lost: int) -> None:
    """Property: however rows are distributed over attempts, a row that is missing from the run never leads to
    a PASS."""
    job = bundles.healthy()
    twice(job, kept=kept)
    del job.points[12 * rank + lost]
    job.refresh()
    with tempfile.TemporaryDirectory() as folder:
        verdict = judge(job.write(Path(folder) / "bundle"))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "unification.lost_points", [rank])


@pytest.mark.parametrize("by_script", [False, True])
def test_ranks_that_ended_before_they_logged_were_started_again(judged: Judged, by_script: bool) -> None:
    """Contract: if no rank has logged, restarts by torchrun or a script are counted from the recorded
    processes."""
    job = recorded(bundles.healthy())
    job.truth = {}
    for index in range(2):
        pod = PodEvents(job, index)
        pod.agent(7, "--nnodes=2")
        pod.workers(7, [(20, 0, index, 2)])
        pod.rank(20, index, 2)
        pod.end(20, 2)
        if by_script:
            pod.agent(8, "--nnodes=2")
        pod.workers(8 if by_script else 7, [(21, 0, index, 2)], restart=0 if by_script else 1)
        pod.rank(21, index, 2)
        pod.end(21, 2)
    explanation = restarts(judged(job)).explanation
    assert "very rank ran once" not in explanation
    who = "the run script started torchrun with rank 1" if by_script else "torchrun started rank 1"
    assert f"{who} again at" in explanation
    assert f"in pod {job.pod_name(1)}; it had logged nothing" in explanation
