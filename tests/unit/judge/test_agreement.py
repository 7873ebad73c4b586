"""Each rank has two recorders. If they disagree, the verdict is not PASS and describes the difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bundles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.evidence.schema.bundle import Check, Verdict
from harness.evidence.schema.ground_truth import (
    TruthBlock,
    TruthClient,
    TruthEnd,
    TruthFault,
    TruthLine,
    TruthMetrics,
    TruthRow,
    TruthStart,
)
from harness.judge import judge
from harness.workers.ground_truth.truth_frames import digest

Judged = Callable[[bundles.Job], Verdict]


def truth_of(rows: list[TruthRow]) -> list[TruthLine]:
    root = digest((row.metric, row.step, row.value) for row in rows)
    return [*rows, TruthEnd(count=len(rows), sha256=root)]


def both(job: bundles.Job) -> bundles.Job:
    """Add a second record, with the same rows, from a recorder around each rank's client."""
    job.outside = {rank: truth_of(job.rows(rank)) for rank in range(job.ranks)}
    return job


def agreement(verdict: Verdict) -> Check:
    return next(check for check in verdict.checks if check.name == "recorders-agree")


def test_one_recorder_has_nothing_to_agree_with(judged: Judged) -> None:
    verdict = judged(bundles.healthy())
    assert verdict.verdict == "PASS"
    assert agreement(verdict).explanation == "Each rank has only one record, so there is nothing to compare"


def test_two_that_agree_are_a_pass(judged: Judged) -> None:
    verdict = judged(both(bundles.healthy()))
    finding = agreement(verdict)
    assert (verdict.verdict, finding.result if finding else None) == ("PASS", "PASS")


def test_a_point_that_only_the_worker_recorded(judged: Judged) -> None:
    """The point is in the run, but only one of the two records contains it, so one of them is wrong."""
    job = both(bundles.healthy())
    job.outside[1] = truth_of(job.rows(1)[1:])
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "unification.recorders_disagree")
    assert verdict.ranks == [1]
    assert f"{job.rows(1)[0].metric} at step {job.rows(1)[0].step}" in verdict.explanation


def test_a_point_that_the_worker_did_not_record(judged: Judged) -> None:
    """A rank logged the point, so it is not a foreign point, and the verdict names the recorder that missed
    it."""
    job = both(bundles.healthy())
    job.retell(0, job.rows(0)[:-1])
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "unification.recorders_disagree")
    assert "not recorded by the worker" in verdict.explanation


@pytest.mark.parametrize("recorded", [False, True])
def test_unrecorded_point_of_child_process_is_foreign(judged: Judged, recorded: bool) -> None:
    """Contract: a program that a rank starts does not log for the rank, even if it inherits the variables."""
    job = both(bundles.healthy())
    rank, child = (TruthStart(attempt=f"a{pid}", time_ms=0, pid=pid) for pid in (79, 115))
    visit = TruthRow(metric="visitor/loss", step=7, value=0.5, time_ms=0)
    visited = [child.model_copy(update={"parent": 79}), *truth_of([visit])]
    job.outside[1] = [rank, *job.outside[1], *visited]
    job.truth[1] = [rank, *job.truth[1], *(visited if recorded else [])]
    job.points.append(bundles.point(job, 1, visit))
    verdict = judged(job)
    assert agreement(verdict).result == "PASS"
    if recorded:
        assert verdict.cause != "unification.foreign_points"
    else:
        assert (verdict.verdict, verdict.cause) == ("FAIL", "unification.foreign_points")
        assert "visitor/loss step 7" in verdict.explanation


def test_a_lost_point_in_one_record_is_reported(judged: Judged) -> None:
    job = both(bundles.healthy())
    last = job.rows(0)[-1]
    job.retell(0, job.rows(0)[:-1])
    job.points = [p for p in job.points if (p.metric, p.step) != (last.metric, last.step)]
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "unification.lost_points")
    assert any(line.startswith("unification.recorders_disagree") for line in verdict.consequences)


def test_another_value_is_told_with_both(judged: Judged) -> None:
    job = both(bundles.healthy())
    rows = job.rows(1)
    job.outside[1] = truth_of([rows[0].model_copy(update={"value": 77.5}), *rows[1:]])
    verdict = judged(job)
    assert verdict.cause == "unification.recorders_disagree"
    assert "passed to the client as 77.5" in verdict.explanation


def test_all_rows_without_an_end_agree(judged: Judged) -> None:
    """If a worker calls os._exit, the second record has no end line, but the verdict is still PASS."""
    job = both(bundles.healthy())
    job.outside[1] = job.outside[1][:-1]
    assert judged(job).verdict == "PASS"


def test_a_rank_that_was_cut_off_is_not_compared(judged: Judged) -> None:
    """The rank had recorded a point that it had not passed to the client yet. The incomplete record is the
    only cause."""
    job = both(bundles.healthy())
    job.truth[1] = job.truth[1][:-1]
    job.outside[1] = job.outside[1][:-3]
    verdict = judged(job)
    finding = agreement(verdict)
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "unification.truth_incomplete")
    assert finding is not None
    assert (finding.result, finding.cause, finding.ranks) == ("UNKNOWN", None, [1])


def test_a_failed_recorder_is_named_where_it_matters(judged: Judged) -> None:
    job = both(bundles.healthy())
    job.outside[1] = [*job.rows(1)[1:], TruthFault(text="OverflowError: too large")]
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "unification.recorders_disagree")
    assert "OverflowError" in verdict.explanation


def test_failed_recorder_that_is_only_one_proves_nothing(judged: Judged) -> None:
    """Contract: if the recorder failed, the verdict is neither PASS nor a loss of points."""
    job = bundles.healthy()
    job.truth[1] = [job.truth[1][0], TruthFault(text="ValueError: what was given"), *job.truth[1][1:]]
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "unification.truth_incomplete")
    assert "the recorder around its client: ValueError: what was given" in verdict.explanation


def past_the_row_limit(job: bundles.Job, rank: int) -> tuple[list[tuple[str, int, float]], list[Any]]:
    """Return a rank's rows, and its records, in which the rows of the first metric are combined into one
    block."""
    rows = [(row.metric, row.step, row.value) for row in job.rows(rank)]
    metric = rows[0][0]
    own = [row for row in rows if row[0] == metric]
    block = TruthBlock(metric=metric, first=own[0][1], last=own[-1][1], count=len(own), sha256=digest(own))
    return rows, [*(row for row in job.rows(rank) if row.metric != metric), block]


def digests(rows: list[tuple[str, int, float]]) -> list[TruthMetrics]:
    """Return one record per metric, with the digest of all rows of the metric."""
    own = {name: [row for row in rows if row[0] == name] for name, _, _ in rows}
    return [TruthMetrics(metrics=[(name, len(some), digest(some))]) for name, some in own.items()]


def in_another_order(rows: list[tuple[str, int, float]]) -> list[tuple[str, int, float]]:
    """Return the rows of several threads in another order. The order within each metric is unchanged."""
    return sorted(rows, key=lambda row: row[0], reverse=True)


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("changed", [False, True])
def test_past_the_row_limit_the_digests_of_metrics_decide(judged: Judged, changed: bool, older: bool) -> None:
    job = both(bundles.healthy())

    def records(rows: list[tuple[str, int, float]], known: list[Any]) -> list[Any]:
        digest_lines = digests(rows)
        end = TruthEnd(count=len(rows), sha256=digest(rows))
        if older:
            metrics = {name: (count, sha256) for one in digest_lines for name, count, sha256 in one.metrics}
            return [*known, end.model_copy(update={"metrics": metrics})]
        return [*known, *digest_lines, end]

    for rank in range(job.ranks):
        rows, known = past_the_row_limit(job, rank)
        job.truth[rank] = records(rows, known)
        other = in_another_order(rows)
        if changed and rank == 1:
            other[-1] = (*other[-1][:2], 77.5)
        job.outside[rank] = records(other, known)
    verdict = judged(job)
    expected = ("unification.recorders_disagree", [1]) if changed else (None, [])
    assert (verdict.cause, verdict.ranks) == expected, verdict


def test_rows_that_contradict_their_metric_digest_are_incomplete(judged: Judged) -> None:
    """Contract: even if a record contains blocks, each row in the log is compared with the rank's digests."""
    job = bundles.healthy()
    rows, known = past_the_row_limit(job, 1)
    last = next(n for n, line in reversed([*enumerate(known)]) if isinstance(line, TruthRow))
    known[last] = known[last].model_copy(update={"value": 77.5})
    job.truth[1] = [*known, *digests(rows), TruthEnd(count=len(rows), sha256=digest(rows))]
    verdict = judged(job)
    assert verdict.verdict != "PASS"
    assert "its rows do not match its own counts and digests" in str(verdict)


@pytest.mark.parametrize("lost", [0, 1])
def test_records_without_metric_digests_compare_the_total_digest(judged: Judged, lost: int) -> None:
    """Contract: a record has no space for the digests of 300 metrics. Such records are equal if the digests
    of all rows are."""
    job = both(bundles.healthy())
    for rank in range(job.ranks):
        rows, records = past_the_row_limit(job, rank)
        job.truth[rank] = [*records, TruthEnd(count=len(rows), sha256=digest(rows), metrics={})]
        sha256 = digest(rows[lost:] if rank == 1 else rows)
        job.outside[rank] = [*records, TruthEnd(count=len(rows), sha256=sha256, metrics={})]
    verdict = judged(job)
    assert (verdict.verdict == "PASS") == (not lost), verdict


@given(data=st.data())
def test_any_change_of_either_record_is_seen(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Property: if a point is removed, added or changed in one of the two records, the verdict is not
    PASS."""
    job = both(bundles.healthy(steps=3))
    rank = data.draw(st.integers(0, job.ranks - 1))
    rows = job.rows(rank)
    at = data.draw(st.integers(0, len(rows) - 1))
    other = rows[at].model_copy(update={"value": data.draw(st.floats(allow_nan=False, width=32)) + 1e9})
    more = rows[at].model_copy(update={"step": data.draw(st.integers(100, 10**6))})
    changed = data.draw(
        st.sampled_from([[*rows[:at], *rows[at + 1 :]], [*rows[:at], other, *rows[at + 1 :]], [*rows, more]])
    )
    if data.draw(st.booleans()):
        job.outside[rank] = truth_of(changed)
    else:
        job.retell(rank, changed)
    job.refresh()
    verdict = judge(job.write(tmp_path_factory.mktemp("bundle") / "bundle"))
    assert verdict.verdict != "PASS"
    finding = agreement(verdict)
    assert finding is not None
    assert finding.result == "UNKNOWN"


@pytest.mark.parametrize(
    ("text", "recorder", "expected"),
    [
        ("does not know this client: AttributeError()", True, "does not know this client: AttributeError()"),
        ("", True, "No recorder ran: did the program call pluto.init()? Was PYTHONPATH overridden"),
        ("", False, "no record of it reached the harness"),
    ],
)
def test_a_rank_without_a_record_says_why(judged: Judged, text: str, recorder: bool, expected: str) -> None:
    """The reason comes from the rank's log. Without it, the verdict lists possible reasons why no recorder
    ran."""
    job = bundles.healthy()
    del job.truth[1]
    assert job.manifest.launch is not None
    launch = job.manifest.launch.model_copy(update={"recorder": recorder})
    job.manifest = job.manifest.model_copy(update={"launch": launch})
    if text:
        job.logs[job.pod_name(1)].append(
            f"{bundles.at(7)} [harness] the recorder around Pluto's client {text}"
        )
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "unification.truth_incomplete")
    assert expected in verdict.explanation


def test_a_lost_point_is_blamed_on_the_client_queue(judged: Judged) -> None:
    """Contract: the verdict does not claim that the client never received a point that was passed to it."""
    job = bundles.healthy()
    lost = job.rows(1)[0]
    start = TruthStart(attempt="a", time_ms=1, outside=True)
    client = TruthClient(whole=True, sent={}, unsent={})
    job.truth[1] = [start, *job.truth[1][:-1], client, job.truth[1][-1]]
    job.points = [p for p in job.points if (p.metric, p.step) != (lost.metric, lost.step)]
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "unification.lost_points")
    assert (
        "handed 1 of them to the client, but the client's queue never contained them" in verdict.explanation
    )
    assert "never gave" not in verdict.explanation
