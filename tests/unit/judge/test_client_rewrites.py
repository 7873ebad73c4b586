"""Points that Pluto's client renames, merges, omits or rounds have causes of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import bundles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_jobs import slow

from harness.evidence.schema.bundle import Verdict
from harness.evidence.schema.ground_truth import TruthBlock, TruthRewrite, TruthRow
from harness.judge import judge
from harness.workers.ground_truth.client_rules import sent, sent_name
from harness.workers.ground_truth.truth_frames import digest

Judged = Callable[[bundles.Job], Verdict]
TIME = 1_795_237_210_000


def rows(metric: str, *values: float) -> list[TruthRow]:
    return [TruthRow(metric=metric, step=n, value=v, time_ms=TIME + n) for n, v in enumerate(values)]


def logged(rank: int, *lines: TruthRow, sends: bool = True) -> bundles.Job:
    """Return a healthy job with these additional points, as the client sends them. If names become equal, the
    later point wins."""
    job = bundles.healthy()
    job.retell(rank, [*job.rows(rank), *lines])
    series = {(sent_name(row.metric), row.step): row for row in lines}
    if sends:
        job.points += [
            bundles.point(job, rank, row).model_copy(update={"metric": name})
            for (name, _), row in series.items()
        ]
    return job


def rewrote(verdict: Verdict) -> str:
    assert (verdict.verdict, verdict.cause) == ("FAIL", "unification.client_rewrote"), verdict
    return verdict.explanation


def test_a_renamed_metric(judged: Judged) -> None:
    """Contract: the verdict contains the old and the new name, and does not call the points lost or
    foreign."""
    verdict = judged(logged(1, *rows("perte/é", 0.5, 0.25)))
    assert verdict.ranks == [1]
    assert "'perte/é' of rank 1 was renamed to 'perte/-' (2 points)" in rewrote(verdict)
    assert verdict.consequences == []


def test_a_renamed_metric_that_is_lost_too(judged: Judged) -> None:
    """Contract: a new name explains only the points that are in the run under this name."""
    job = logged(1, *rows("perte/é", 0.5, 0.25))
    job.points = job.points[:-1]
    verdict = judged(job)
    assert "renamed to 'perte/-' (1 point)" in rewrote(verdict)
    assert any(
        line.startswith("unification.lost_points: Run UTE-1 lacks 1 point") for line in verdict.consequences
    )


def test_another_value_under_the_new_name(judged: Judged) -> None:
    """Contract: a new name does not excuse a different value."""
    job = logged(1, *rows("perte/é", 0.5))
    job.points[-1] = job.points[-1].model_copy(update={"value": 0.75})
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "unification.lost_points")


def test_names_that_become_one(judged: Judged) -> None:
    """Contract: the verdict contains both names and the number of lost points."""
    text = rewrote(judged(logged(0, *rows("x/é", 1.0, 2.0), *rows("x/è", 3.0, 4.0))))
    assert "'x/é', 'x/è' became one metric, 'x/-', with one value for each step: 2 points of rank 0" in text


def test_a_name_that_becomes_a_plain_one(judged: Judged) -> None:
    """Contract: overwritten points of the metric whose name is unchanged are not called wrong values."""
    verdict = judged(logged(0, *rows("x/-", 1.0, 2.0), *rows("x/é", 3.0, 4.0)))
    assert "'x/-', 'x/é' became one metric, 'x/-', with one value for each step: 2 points" in rewrote(verdict)
    assert verdict.consequences == []


def test_equal_values_under_names_that_become_one(judged: Judged) -> None:
    """Contract: the collision is reported even if no value is missing."""
    assert "became one metric" in rewrote(judged(logged(0, *rows("x/é", 1.0), *rows("x/è", 1.0))))


def test_names_of_two_ranks_that_become_one(judged: Judged) -> None:
    """Contract: both ranks are named."""
    job = logged(0, *rows("x/é", 1.0), sends=False)
    job.retell(1, [*job.rows(1), *rows("x/è", 2.0)])
    job.points.append(bundles.point(job, 1, rows("x/-", 2.0)[0]))
    verdict = judged(job)
    assert "'x/é', 'x/è' became one metric" in rewrote(verdict)
    assert verdict.ranks == [0, 1]


def test_a_renamed_metric_past_the_row_limit(judged: Judged) -> None:
    """Contract: a block with a digest is also found under the new name."""
    job = bundles.healthy()
    lines = rows("perte/é", *map(float, range(5)))
    sha = digest((row.metric, row.step, row.value) for row in lines)
    block = TruthBlock(metric="perte/é", first=0, last=4, count=5, sha256=sha)
    job.retell(0, job.rows(0), [block])
    job.points += [bundles.point(job, 0, row).model_copy(update={"metric": "perte/-"}) for row in lines]
    verdict = judged(job)
    assert "'perte/é' of rank 0 was renamed to 'perte/-' (5 points)" in rewrote(verdict)
    assert verdict.consequences == []


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (True, "leaves out booleans"),
        (None, "not int or float (NoneType)"),
        (2**53 + 1, "Pluto keeps doubles"),
    ],
)
def test_a_value_that_the_client_changes(judged: Judged, value: object, reason: str) -> None:
    """Contract: the change that the recorder reported is the cause, even if nothing is missing from the
    run."""
    outcome = sent(value)
    lines = [row for number in outcome.values for row in rows("flag", number)]
    job = logged(0, *lines, sends=outcome.kept)
    frame = TruthRewrite(metric="flag", step="0", was=repr(value), kept=outcome.kept, why=outcome.why)
    job.truth[0].insert(-1, frame)
    verdict = judged(job)
    explained = rewrote(verdict)
    where = (
        "'flag' of rank 0 (step 0)" if outcome.values and not outcome.kept else f"flag = {value!r} at step 0"
    )
    assert explained.index(outcome.why) < explained.index(where)
    assert reason in verdict.explanation
    assert verdict.consequences == []


def test_a_dropped_metric_does_not_excuse_another(judged: Judged) -> None:
    """Contract: a dropped metric explains only its own missing points."""
    job = bundles.healthy()
    job.truth[0].insert(-1, TruthRewrite(metric="flag", step="0", was="True", kept=False, why="left out"))
    job.points = [p for p in job.points if (p.metric, p.step) != ("loss/node0", 3)]
    verdict = judged(job)
    assert "unification.lost_points" in {line.partition(":")[0] for line in verdict.consequences}


NAMES = st.sampled_from(["a", "-", "é", "aé", "a-", "è", "b"])


@given(
    st.lists(st.tuples(st.integers(0, 1), NAMES, st.integers(0, 3), st.sampled_from([1.0, 2.0])), max_size=12)
)
@slow
def test_whatever_names_the_client_changes(points: list[tuple[int, str, int, float]]) -> None:
    """Property: a changed name never leads to a PASS, or to a lost, wrong or unexpected point."""
    job = bundles.healthy()
    points = [(rank, f"{rank}/{name}", step, value) for rank, name, step, value in points]
    for rank in range(2):
        mine = [(name, step, value) for owner, name, step, value in points if owner == rank]
        lines = [
            TruthRow(metric=name, step=step, value=value, time_ms=TIME + at)
            for at, (name, step, value) in enumerate(mine)
        ]
        job.retell(rank, [*job.rows(rank), *lines])
        job.points += [
            bundles.point(job, rank, row).model_copy(update={"metric": sent_name(row.metric)})
            for row in lines
        ]
    job.refresh()
    with tempfile.TemporaryDirectory() as folder:
        verdict = judge(job.write(Path(folder)))
    if any(sent_name(name) != name for _, name, _, _ in points):
        rewrote(verdict)
        assert verdict.consequences == []
    else:
        assert verdict.verdict == "PASS", verdict.explanation
