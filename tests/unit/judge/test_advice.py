"""Each piece of advice is given only if its assumptions are true."""

import json

import bundles
import pytest
from bundles import UID, Job, at, cond, stuck, timed_out
from process_events import PodEvents, recorded

from harness.evidence.schema.ground_truth import TruthSettings, TruthStart
from harness.judge.logs import error_patterns


def advice(verdict):
    return verdict.next[-1]


def explained(verdict, name):
    return next(check.explanation for check in verdict.checks if check.name == name)


def test_lost_points_of_which_no_client_tells(judged):
    """Contract: the advice does not refer to a part of the explanation that does not exist."""
    job = bundles.healthy()
    job.points = [one for one in job.points if one.metric != "loss/node1" or one.step != 3]
    verdict = judged(job)
    assert verdict.cause == "unification.lost_points"
    assert "explanation says" not in advice(verdict)
    assert "rank 1" in advice(verdict)


def test_points_from_the_job_s_own_pod(judged):
    """Contract: points that the rank's own pod sent without `run.log` are not attributed to another
    writer."""
    job = bundles.healthy()
    address = {"podIP": "10.244.1.7"}
    for kind, seen in job.objects:
        if kind == "pod" and seen.object["metadata"]["name"] == job.pod_name(1):
            seen.object["status"] |= address
    row = job.rows(1)[0].model_copy(update={"metric": "eval/bleu"})
    job.points.append(bundles.point(job, 1, row, sender="node1", peer="10.244.1.7"))
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "unification.foreign_points", [1])
    assert "who else" not in advice(verdict)
    assert "pod of rank 1" in verdict.explanation


def test_points_from_nobody_knows_where(judged):
    """Contract: if the sender's address does not belong to a pod, the advice asks who else writes to the
    run."""
    job = bundles.healthy()
    row = job.rows(1)[0].model_copy(update={"metric": "eval/bleu"})
    job.points.append(bundles.point(job, 1, row, sender=None))
    verdict = judged(job)
    assert verdict.cause == "unification.foreign_points"
    assert "who else" in advice(verdict)


def test_points_that_bypass_run_log_are_foreign_points(judged):
    """Contract: rank 1 recorded nothing although its pod sent points, so the points are the cause."""
    job = bundles.healthy()
    for kind, seen in job.objects:
        if kind == "pod" and seen.object["metadata"]["name"] == job.pod_name(1):
            seen.object["status"] |= {"podIP": "10.244.1.7"}
    job.points = [
        one.model_copy(update={"peer": "10.244.1.7"}) if one.metric.endswith("node1") else one
        for one in job.points
    ]
    job.retell(1, [])
    job.refresh()
    verdict = judged(job)
    assert verdict.cause == "unification.foreign_points", verdict.explanation
    assert "without a recorded call of run.log" in verdict.explanation
    assert verdict.ranks == [1]


@pytest.mark.parametrize(("code", "asked"), [(0, True), (1, False)])
def test_the_pluto_init_question_is_skipped_for_crashed_ranks(judged, code, asked):
    """Contract: if a rank failed at its start, the verdict does not ask whether it called pluto.init()."""
    job = bundles.healthy()
    job.manifest = job.manifest.model_copy(
        update={"launch": job.manifest.launch.model_copy(update={"recorder": True})}
    )
    if code:
        bundles.crash(job, 1, code)
    del job.truth[1]
    explanation = explained(judged(job), "ground-truth-complete")
    assert ("did the program call pluto.init()" in explanation) is asked


@pytest.mark.parametrize(
    "lines",
    [
        ["loading", "Traceback (most recent call last):", '  File "a.py", line 3, in <module>', "    main()"],
        ["loading", '[rank1]:   File "a.py", line 3, in f', "[rank1]:     return g(", "[rank1]:         x)"],
        ["loading", "frame #0: c10::Error", "frame #1: <unknown function>"],
        ["loading", "*** Signal 11 (11) received", "PC: @ 0x0 (unknown)", "@ 0x7f11 __restore_rt"],
        ["loading", "#1 0x00007f in start_thread () from /lib/libc.so.6"],
        ["loading", "/lib/libtorch.so(+0x4f2a) [0x7f12]", "Thread 0x00007f12 (most recent call first):"],
    ],
)
def test_a_piece_of_a_stack_is_not_a_message(lines):
    """Contract: the verdict quotes the last message, and not a line of the stack trace after it."""
    assert error_patterns.last_line(list(enumerate(lines, 1)))[0] == "loading"


def test_last_line_of_stalled_rank_is_message(judged):
    job = stuck(bundles.healthy(), 3)
    name = job.pod_name(1)
    job.logs[name] = [f"{at(6, True)} step 3", f'{at(6, True)}   File "a.py", line 3, in f']
    timed_out(job)
    verdict = judged(job)
    assert "Its last log line: step 3" in verdict.explanation


def test_a_segfault_has_no_advice_about_the_sender(judged):
    job = bundles.healthy()
    bundles.crash(job, 0)
    job.drop_pod(0, after=10)
    job.logs[job.pod_name(0)] = job.logs[job.pod_name(0)][:3]
    job.ended(0, 12, 139, message="")
    verdict = judged(job)
    assert verdict.cause == "rank.killed"
    assert "who sent the signal" not in advice(verdict)


@pytest.mark.parametrize("code", [0, 3])
def test_abort_behind_end_of_script_is_said(judged, code):
    """Contract: if a rank is aborted after its script ended with exit code 0, the advice is to call
    destroy_process_group. If the script ended with another exit code, this advice is not given.
    """
    job = recorded(bundles.healthy())
    for index in range(2):
        pod = PodEvents(job, index)
        pod.agent(7, "--nnodes=2")
        pod.workers(7, [(20, 0, index, 2)])
        pod.rank(20, index, 2)
        pod.end(20, 0 if index else code)
        if index:
            pod.result(7)
    PodEvents(job, 0).add("failed", 7, failures=[(20, 0, 0, -6, "Signal 6 (SIGABRT) received by PID 20")])
    job.drop_pod(0, after=10)
    job.ended(0, 12, 134, message="")
    verdict = judged(job)
    assert verdict.cause == "rank.killed"
    is_abort = "signal 6 (SIGABRT), after its script had ended with exit code 0" in verdict.explanation
    assert (is_abort, "destroy_process_group" in advice(verdict)) == (code == 0, code == 0)


def torchrun_job(job: Job, phase: str, **spec) -> None:
    """Turn the job into a TorchrunJob whose controller deleted the JobSet."""
    launch = job.manifest.launch.model_copy(update={"launcher": "torchrun"})
    job.manifest = job.manifest.model_copy(update={"launch": launch, "deadline_seconds": 60.0})
    metadata = {"name": launch.object_name, "uid": "tj", "namespace": launch.namespace}
    failed = cond("Failed", "True", "DeadlineExceeded", "it ran for 45 s, its active deadline", 30)
    status = {"phase": phase, "completionTime": at(30), "conditions": [failed], "message": "it ran for 45 s"}
    job.see("torchrunjob", 30, {"kind": "TorchrunJob", "metadata": metadata, "spec": spec, "status": status})
    jobset = next(seen.object for kind, seen in reversed(job.objects) if kind == "jobset")
    job.see("jobset", 31, {**jobset, "metadata": {**jobset["metadata"], "uid": UID}}, "DELETED")


def test_a_deadline_is_nobody_s_deletion(judged):
    """Contract: if the torchrun controller deleted the JobSet at the deadline, the cause is a timeout."""
    job = stuck(bundles.healthy(), 3)
    torchrun_job(job, "TimedOut", reliability={"activeDeadlineSeconds": 45})
    verdict = judged(job)
    assert verdict.cause == "run.timed_out"
    assert "activeDeadlineSeconds (45 s)" in verdict.explanation
    assert "not by the harness" not in json.dumps(verdict.model_dump())


def test_a_torchrun_job_that_its_controller_failed(judged):
    job = stuck(bundles.healthy(), 3)
    torchrun_job(job, "Failed")
    verdict = judged(job)
    assert verdict.cause == "run.not_completed"
    assert "DeadlineExceeded: it ran for 45 s" in verdict.explanation


def settings(job: Job, rank: int, **given) -> None:
    start = TruthStart(attempt=f"a{rank}", time_ms=1_795_237_209_000, pod=job.pod_name(rank // job.per_node))
    record = TruthSettings(**{"mode": "perf", "uploads": True, "queue": f"/x/{rank}/sync.db", **given})
    job.truth[rank] = [start, record, *job.truth[rank]]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"mode": "noop", "queue": ""}, "was created with mode='noop', which sends nothing"),
        ({"uploads": False, "queue": ""}, "sync_process_enabled=False"),
    ],
)
def test_a_client_that_uploads_nothing_is_the_reason(judged, given, reason):
    """Contract: the client's settings explain why its points are missing."""
    job = bundles.healthy()
    job.points = [one for one in job.points if one.metric.endswith("node0")]
    settings(job, 1, **given)
    verdict = judged(job)
    assert verdict.cause == "unification.lost_points"
    assert reason in verdict.explanation


def test_noop_mode_explains_a_silent_rank(judged):
    job = bundles.healthy()
    job.points = [one for one in job.points if one.metric.endswith("node0")]
    job.retell(1, [])
    settings(job, 1, mode="noop", queue="")
    job.refresh()
    verdict = judged(job)
    assert verdict.cause == "unification.rank_silent"
    assert "mode='noop'" in verdict.explanation
    assert "say so" not in verdict.explanation


def test_ranks_that_share_the_client_s_queue(judged):
    """Contract: the first call of finish() ends the upload process for all ranks that share the client's
    queue."""
    job = bundles.healthy(1, 2)
    job.points = [one for one in job.points if not (one.metric == "loss/node1" and one.step > 3)]
    for rank in (0, 1):
        settings(job, rank, queue="/out/.pluto/e2e/run/sync.db")
    verdict = judged(job)
    assert verdict.cause == "unification.lost_points"
    assert "ranks 0 and 1 share one client queue" in verdict.explanation.replace("Ranks", "ranks")
