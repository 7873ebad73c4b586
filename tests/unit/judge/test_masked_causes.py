"""The cause of a failure that the run script's exit code hides."""

import bundles
import pytest
from peer_errors import LOST_A_PEER
from process_events import PodEvents, recorded, together
from script_events import failing, plain, ran, with_script


def test_a_masked_restart_names_the_rank_that_failed(judged):
    """The last start failed only because the first agent had already ended."""
    job = recorded(bundles.healthy())
    for index in range(2):
        pod = PodEvents(job, index)
        pod.agent(7, "--nnodes=2", "--max-restarts=2")
        for restart, pid in enumerate((20, 30)):
            pod.workers(7, [(pid, 0, index, 2)], restart=restart)
            pod.rank(pid, index, 2)
            error = (
                "FileNotFoundError: shard-9"
                if index
                else "RuntimeError: Connection closed by peer [10.0.0.1]"
            )
            pod.end(pid, 1, "exception", error)
            pod.add("failed", 7, failures=[(pid, 0, index, 1, "To enable traceback see: …")])
        pod.workers(7, [(40, 0, index, 2)], restart=2)
        pod.rank(40, index, 2)
        pod.end(40, 1, "exception", "RuntimeError: Gloo connectFullMesh failed")
        pod.result(7, "raised", "RendezvousConnectionError: The connection to the C10d store has failed")
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.exit_code_masked", [1])
    assert "rank 1 ended with exit code 1 (restart 1 of at most 3): FileNotFoundError" in verdict.explanation


def out_of_memory(job, index):
    for kind, state in job.objects:
        if kind != "pod" or state.object["metadata"]["name"] != job.pod_name(index):
            continue
        for status in state.object["status"].get("containerStatuses", []):
            if "terminated" in status["state"]:
                status["state"]["terminated"]["reason"] = "OOMKilled"
    return job


def test_a_masked_oom_kill_is_still_reported(judged):
    job = out_of_memory(failing(bundles.healthy(), -9, "", ""), 1)
    verdict = judged(with_script(job, "torchrun a.py || true"))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.oom_killed", [1])
    assert "was ended by signal 9 after step 5" in verdict.explanation
    assert "out of memory" in verdict.explanation
    assert "`|| true` after the command hides the exit code" in verdict.explanation


def test_an_oom_kill_counted_by_the_agent_is_reported(judged):
    job = failing(bundles.healthy(), -9, "", "")
    for at, event in enumerate(job.processes):
        if event.kind == "failed":
            job.processes[at] = event.model_copy(update={"oom_kills": 1})
    assert judged(job).cause == "rank.oom_killed"


def test_an_oom_kill_fails_an_otherwise_healthy_job(judged):
    verdict = judged(out_of_memory(together(bundles.healthy()), 1))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.oom_killed", [1])


def test_a_timeout_before_any_rank_process_is_reported(judged):
    job = with_script(recorded(bundles.healthy()), "timeout 5 torchrun a.py || true")
    job.truth, job.runs, job.points, job.attachments = {}, [], [], []
    verdict = judged(job)
    assert verdict.cause == "rank.exited_early"
    assert "`timeout 5` in its script expired before a process of rank 0 was recorded" in verdict.explanation


def test_exit_code_124_is_explained_by_the_script_timeout(judged):
    job = bundles.healthy()
    bundles.crash(job, 1, code=124)
    job.drop_pod(1, after=10)
    job.ended(1, 12, 124)
    job.logs[job.pod_name(1)] = job.logs[job.pod_name(1)][:3]
    with_script(job, "timeout -k 5 25 torchrun a.py")
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.killed", [1])
    assert "exited with code 124: `timeout -k 5 25` in its script ended it" in verdict.explanation
    assert any("raise the limit of `timeout`" in one for one in verdict.next)


def test_a_wrapper_that_hides_the_exit_code_is_named(judged):
    job = with_script(bundles.healthy(), "python3 supervise.py")
    ran(plain(job), 20, 1)
    assert (
        "the program that the script starts did not pass the exit code on" in judged(job).explanation.lower()
    )


@pytest.mark.parametrize("error", LOST_A_PEER.values(), ids=LOST_A_PEER.keys())
def test_a_masked_loss_of_a_peer_accuses_the_peer(judged, error):
    """Contract: the rank that raised on its own is named, although its peer ended first."""
    job = recorded(bundles.healthy())
    for index in range(2):
        pod = PodEvents(job, index)
        pod.agent(7, "--nnodes=2")
        pod.workers(7, [(20, 0, index, 2)])
        pod.rank(20, index, 2)
        pod.end(20, 1, "exception", "ValueError: boom" if index else error)
        pod.add("failed", 7, failures=[(20, 0, index, 1, "To enable traceback see: …")])
        pod.result(7, "FAILED")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.exit_code_masked", [1]), verdict.explanation
    assert "ValueError: boom" in verdict.explanation


def test_a_masked_abort_by_nccl_accuses_the_peer(judged):
    """Contract: only the log names the peer as the reason why NCCL's watchdog ended the rank by SIGABRT."""
    job = recorded(bundles.healthy())
    error = LOST_A_PEER["nccl-watchdog"]
    job.logs[job.pod_name(0)] = [f"{bundles.at(7, True)} [rank0]:[E1121 ProcessGroupNCCL.cpp:632] {error}"]
    for index in range(2):
        pod = PodEvents(job, index)
        pod.agent(7, "--nnodes=2")
        pod.workers(7, [(20, 0, index, 2)])
        pod.rank(20, index, 2)
        if index:
            pod.end(20, 1, "exception", "ValueError: boom")
        pod.add("failed", 7, failures=[(20, 0, index, 1 if index else -6, "To enable traceback see: …")])
        pod.result(7, "FAILED")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.exit_code_masked", [1]), verdict.explanation
