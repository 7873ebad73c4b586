"""Every point of every rank must be in one run: each part of that has its own check and cause."""

import bundles
import pytest
from bundles import at

from harness.evidence.schema.bundle import Verdict
from harness.evidence.schema.ground_truth import (
    TruthBlock,
    TruthEnd,
    TruthGap,
    TruthRow,
)
from harness.evidence.schema.tracker import Attachment
from harness.judge import judge
from harness.judge.points.compare import compact
from harness.workers.ground_truth.truth_frames import digest


def causes(verdict: Verdict) -> set[str | None]:
    return {verdict.cause, *(line.partition(":")[0] for line in verdict.consequences)}


def test_a_run_in_another_project_is_rejected(judged):
    """Contract: a run in another project does not count, and the verdict names the project to which the ranks
    logged."""
    job = bundles.healthy()
    job.runs = [job.runs[0].model_copy(update={"project": "other"})]
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "unification.no_run", [0, 1])
    assert "project other" in verdict.explanation


@pytest.mark.parametrize("keeps_attachments", [True, False])
def test_a_rank_in_another_run(judged, keeps_attachments):
    """Contract: the rank is identified by its attachment or its points, and its lost points are a
    consequence."""
    job = bundles.healthy()
    job.runs.append(
        job.runs[0].model_copy(update={"run_id": 2, "external_id": "mine", "display_id": "UTE-2"})
    )
    job.points = [p.model_copy(update={"run_id": 2}) if p.metric.endswith("node1") else p for p in job.points]
    stray = job.attachments[1].model_copy(update={"run_id": 2, "resumed": False})
    job.attachments = [job.attachments[0], stray] if keeps_attachments else None
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "unification.split_runs", [1])
    assert "UTE-2 (id mine)" in verdict.explanation
    assert {"unification.not_attached", "unification.lost_points"} <= causes(verdict)


@pytest.mark.parametrize(("launch", "cause"), [("0ther", None), (None, "unification.split_runs")])
def test_an_earlier_launch_of_the_same_name(judged, launch, cause):
    """Contract: konduktor appends four random digits to a job's name, so two of several hundred launches may
    have the same name. The key of the requests shows to which launch an attachment belongs, and the other
    launch's run is not held against this one.
    """
    job = bundles.healthy()
    other = {"run_id": 2, "external_id": "other", "display_id": "UTE-2"}
    job.runs.append(job.runs[0].model_copy(update=other))
    theirs = {"run_id": 2, "launch": launch}
    job.attachments += [one.model_copy(update=theirs) for one in job.attachments]
    job.points += [one.model_copy(update={"run_id": 2}) for one in job.points]
    verdict = judged(job)
    assert verdict.cause == cause, verdict.explanation


def test_a_stale_run(judged):
    """Contract: a run that was created before the launch belongs to another launch, whatever it contains."""
    job = bundles.healthy()
    job.runs = [job.runs[0].model_copy(update={"created_at": at(-300, True)})]
    verdict = judged(job)
    assert verdict.cause == "unification.stale_run"
    assert "300.0 s earlier" in verdict.explanation


@pytest.mark.parametrize(("created", "resumed", "result"), [(-1.0, False, "PASS"), (-1.0, True, "FAIL")])
def test_within_clock_error_the_attachments_decide(judged, created, resumed, result):
    """Contract: a run that one of the launch's ranks created belongs to the launch, even if a clock is off by
    a second."""
    job = bundles.healthy()
    job.runs = [job.runs[0].model_copy(update={"created_at": at(created, True)})]
    job.attachments[0] = job.attachments[0].model_copy(update={"resumed": resumed})
    assert judged(job).verdict == result


def test_a_rank_that_never_attached(judged):
    """Contract: a rank without an attachment to the shared run is named."""
    job = bundles.healthy()
    del job.attachments[1]
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("unification.not_attached", [1])


def test_an_attachment_is_known_by_node_rank_too(judged):
    """Contract: without a hostname, konduktor's node rank and job name identify the rank that attached."""
    job = bundles.healthy()
    job.attachments = [a.model_copy(update={"hostname": None}) for a in job.attachments]
    assert judged(job).verdict == "PASS"
    job.attachments[1] = Attachment(run_id=1, at=at(9), resumed=True)
    assert judged(job).verdict == "UNKNOWN"


@pytest.mark.parametrize(("second", "result"), [(1, "PASS"), (0, "FAIL")])
def test_pods_in_the_network_of_one_node_attach_separately(judged, second, result):
    """Contract: such pods share a hostname, so the pod's uid shows which of them attached."""
    job = bundles.healthy()
    uids = {}
    for kind, state in job.objects:
        if kind == "pod":
            state.object["spec"] |= {"hostNetwork": True, "nodeName": "e2e-worker"}
            uids[state.object["metadata"]["name"]] = state.object["metadata"]["uid"]
    job.attachments = [
        one.model_copy(
            update={"hostname": "e2e-worker", "process": f"{uids[job.pod_name(index)]}/{40 + index}/99"}
        )
        for one, index in zip(job.attachments, (0, second), strict=True)
    ]
    [attached] = [check for check in judged(job).checks if check.name == "attached"]
    assert (attached.result, attached.ranks) == (result, [1] if result == "FAIL" else [])


def test_a_silent_rank(judged):
    """Contract: a rank that logged nothing is a FAIL, although none of its points can be missing."""
    job = bundles.healthy()
    job.retell(1, [])
    job.points = [p for p in job.points if p.metric.endswith("node0")]
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "unification.rank_silent", [1])


def test_lost_points_are_named(judged):
    """Contract: the verdict names rank, metric and steps compactly, with the line of the ground truth."""
    job = bundles.healthy(steps=14)
    lost = {7, 9, 10, 11, 12}
    job.points = [p for p in job.points if not (p.metric == "loss/node1" and p.step in lost)]
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "unification.lost_points", [1])
    assert "rank 1: loss/node1 steps 7, 9–12 (5 points)" in verdict.explanation
    assert "truth/1.jsonl:15" in verdict.evidence


def test_a_wrong_value_names_both(judged):
    """Contract: a value that differs by one unit in the last place is wrong, and both values are named."""
    job = bundles.healthy()
    at_ = next(i for i, p in enumerate(job.points) if p.metric == "loss/node1" and p.step == 3)
    job.points[at_] = job.points[at_].model_copy(update={"value": 1.2500000000000002})
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("unification.wrong_value", [1])
    assert "1.25 at step 3" in verdict.explanation
    assert "1.2500000000000002" in verdict.explanation


def shared_metric(job: bundles.Job, same: bool) -> None:
    for rank in range(job.ranks):
        row = TruthRow(metric="train/loss", step=1, value=0.5 if same else rank, time_ms=5 + rank)
        job.retell(rank, [*job.rows(rank), row])
        job.points.append(bundles.point(job, rank, row))


def test_two_ranks_one_metric(judged):
    """Contract: different values for one metric and step collide and name both ranks. Equal values do not."""
    job = bundles.healthy()
    shared_metric(job, same=False)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("unification.metric_collision", [0, 1])
    assert "train/loss at step 1: rank 0 logged 0.0, rank 1 logged 1.0" in verdict.explanation


def test_two_ranks_say_the_same(judged):
    """Contract: an all-reduced value that every rank logs counts as one point."""
    job = bundles.healthy()
    shared_metric(job, same=True)
    assert judged(job).verdict == "PASS"


def test_sys_metrics_are_not_foreign_points(judged):
    """Contract: points that no rank logged are a FAIL. The client's own sys/ metrics are allowed."""
    job = bundles.healthy()
    row = TruthRow(metric="sys/cpu.percentage.0", step=1, value=3, time_ms=1)
    job.points.append(bundles.point(job, 0, row))
    assert judged(job).verdict == "PASS"


def test_foreign_points_of_somebody_else(judged):
    """Contract: the metric and steps of points that no rank logged are named."""
    job = bundles.healthy()
    row = TruthRow(metric="loss/node0", step=77, value=3, time_ms=1)
    job.points.append(bundles.point(job, 0, row))
    verdict = judged(job)
    assert verdict.cause == "unification.foreign_points"
    assert "loss/node0 step 77" in verdict.explanation


def test_duplicate_rows_resolve_by_client_time_then_order(judged):
    """Contract: the highest client time wins, then the last row.

    Re-sent rows are mentioned and are no failure.
    """
    job = bundles.healthy()
    first = job.points[0]
    older = first.model_copy(update={"value": 99.0, "time_ms": first.time_ms - 1})
    job.points = [first.model_copy(update={"value": 98.0}), *job.points, first, older]
    verdict = judged(job)
    assert verdict.verdict == "PASS"
    check = next(check for check in verdict.checks if check.name == "no-lost-points")
    assert "3 raw rows were sent more than once" in check.explanation


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda lines: lines[:-1], "end record is missing"),
        (lambda lines: lines[1:], "12 rows, but the bundle has 11"),
        (lambda lines: [TruthGap(after_seq=-1, next_seq=1), *lines], "1 gap in its frames"),
        (lambda lines: [lines[0].model_copy(update={"value": 9.0}), *lines[1:]], "digests"),
        (lambda lines: [*lines[:-1], TruthEnd(count=12, sha256="00")], "digests"),
    ],
)
def test_a_truth_that_is_not_whole(tmp_path, damage, words):
    """Contract: ground truth with a gap, without its end or with other digests never gives a PASS."""
    job = bundles.healthy()
    job.truth[1] = damage(job.truth[1])
    verdict = judge(job.write(tmp_path / "b"))
    assert verdict.verdict != "PASS"
    check = next(check for check in verdict.checks if check.name == "ground-truth-complete")
    assert (check.result, check.cause, check.ranks) == ("UNKNOWN", "unification.truth_incomplete", [1])
    assert words in check.explanation


def test_log_that_tells_another_story_than_termination_message(tmp_path):
    """Contract: a log that is consistent but does not match the digest in the pod's status is not trusted."""
    job = bundles.healthy()
    job.retell(1, job.rows(1)[:-1])
    job.points.pop()
    verdict = judge(job.write(tmp_path / "b"))
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "unification.truth_incomplete")
    assert "do not agree" in verdict.explanation


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"error": "connection refused"}, "tracker.unreachable"),
        ({"truncated": True}, "tracker.incomplete"),
        ({"points": 999}, "tracker.incomplete"),
    ],
)
def test_half_of_the_trackers_rows_prove_nothing(judged, change, cause):
    """Contract: with incomplete tracker evidence, missing points are not called lost."""
    job = bundles.healthy()
    job.points.pop()
    job.summary = change
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", cause)


@pytest.mark.parametrize("status", ["RUNNING", "FAILED", "TERMINATED"])
def test_a_status_that_does_not_fit(judged, status):
    """Contract: if every pod succeeded, the run's status must be COMPLETED."""
    job = bundles.healthy()
    job.runs = [job.runs[0].model_copy(update={"status": status})]
    assert judged(job).cause == "unification.wrong_status"


def with_blocks(wrong: bool = False, lose: int = 0) -> bundles.Job:
    """Return a job whose rank 1 logged 2000 more points beyond its row limit, recorded as digests of 1000
    points each."""
    job = bundles.healthy()
    rows = [TruthRow(metric="late", step=s, value=s / 7, time_ms=2_000 + s) for s in range(2000)]
    blocks = [
        TruthBlock(
            metric="late",
            first=part[0].step,
            last=part[-1].step,
            count=len(part),
            sha256=digest((r.metric, r.step, r.value) for r in part),
        )
        for part in (rows[:1000], rows[1000:])
    ]
    before = job.rows(1)
    every = [(r.metric, r.step, r.value) for r in before + rows]
    names = dict.fromkeys(metric for metric, _, _ in every)
    metrics = {m: (sum(r[0] == m for r in every), digest(r for r in every if r[0] == m)) for m in names}
    job.truth[1] = [*before, *blocks, TruthEnd(count=len(every), sha256=digest(every), metrics=metrics)]
    job.points += [bundles.point(job, 1, row) for row in rows[lose:]]
    if wrong:
        job.points[-1] = job.points[-1].model_copy(update={"value": 1.0})
    return job


def test_intact_blocks_pass_past_the_row_limit(judged):
    """Contract: rows beyond the limit are compared by block, with the count and the digest."""
    assert judged(with_blocks()).verdict == "PASS"


def test_blocks_that_lost_points(judged):
    """Contract: for a loss beyond the row limit, the verdict names the block."""
    verdict = judged(with_blocks(lose=3))
    assert (verdict.cause, verdict.ranks) == ("unification.lost_points", [1])
    assert "late 3 of 1000 points in steps 0–999" in verdict.explanation


def test_blocks_with_a_wrong_value(judged):
    """Contract: a different digest with the same count means a wrong value, and the verdict names the
    block."""
    verdict = judged(with_blocks(wrong=True))
    assert verdict.cause == "unification.wrong_value"
    assert "1000–1999" in verdict.explanation


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([7], "step 7"),
        ([7, 9, 10, 11, 12], "steps 7, 9–12 (5 points)"),
        ([1, 2], "steps 1, 2 (2 points)"),
        (range(0, 100, 10), "steps 0, 10, 20, 30, 40, 50, 60, 70, … (10 points)"),
    ],
)
def test_steps_are_told_compactly(steps, text):
    """Contract: steps are shown as ranges, not as lists."""
    assert compact(steps) == text
