"""Jobs in which only some ranks log. This is a PASS if the job declares it. Otherwise, it is a FAIL that
explains how to declare it."""

import bundles
from bundles import Job


def only_rank_0(ranks: list[int] | None) -> Job:
    """Return a job whose rank 1 ran to its end, never attached, and logged nothing."""
    job = bundles.healthy()
    job.points = [one for one in job.points if one.metric.endswith("node0")]
    job.attachments = job.attachments[:1]
    job.retell(1, [])
    job.refresh()
    expected = job.manifest.expected.model_copy(update={"ranks_that_log": ranks})
    job.manifest = job.manifest.model_copy(update={"expected": expected})
    return job


def test_a_job_that_says_so_passes(judged):
    verdict = judged(only_rank_0([0]))
    assert verdict.verdict == "PASS", verdict.explanation
    assert "Only rank 0 had to log, and rank 1 logged nothing" in verdict.explanation


def test_the_failure_has_the_line_to_add(judged):
    verdict = judged(only_rank_0(None))
    assert (verdict.cause, verdict.ranks) == ("unification.rank_silent", [1])
    assert 'pluto-e2e-harness/expect-ranks: "0" in resources.labels' in verdict.explanation


def test_rank_that_is_to_log_may_not_be_silent(judged):
    verdict = judged(only_rank_0([0, 1]))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "unification.rank_silent", [1])
    assert "say so" not in verdict.explanation


def test_a_rank_that_is_not_there_cannot_log(judged):
    assert judged(only_rank_0([0, 7])).cause == "unification.rank_silent"


def test_a_silent_rank_must_have_run_to_its_end(judged):
    """Contract: only the end of a rank's record proves that it logged nothing. Without the end, there is no
    PASS."""
    job = only_rank_0([0])
    job.truth[1] = []
    for _, seen in job.objects:
        for status in seen.object["status"].get("containerStatuses", []):
            status["state"].get("terminated", {}).pop("message", None)
    verdict = judged(job)
    assert verdict.verdict == "UNKNOWN", verdict.explanation


def test_a_silent_rank_that_crashed_is_a_crash(judged):
    job = only_rank_0([0])
    job.truth[1] = bundles.healthy().truth[1]
    bundles.crash(job, 1)
    job.truth[1] = []
    assert judged(job).cause == "rank.crashed"


def test_a_rank_that_was_to_log_nothing_may_log(judged):
    """Contract: if such a rank does log points, they are judged like those of any rank."""
    job = bundles.healthy()
    expected = job.manifest.expected.model_copy(update={"ranks_that_log": [0]})
    job.manifest = job.manifest.model_copy(update={"expected": expected})
    assert judged(job).verdict == "PASS"
    job.points.pop()


def test_a_lost_point_of_the_rank_that_logs(judged):
    job = only_rank_0([0])
    job.points.pop()
    assert judged(job).cause == "unification.lost_points"
