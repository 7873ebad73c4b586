"""Ranks that ended because a peer ended or because shared memory was too small, according to their libraries'
messages."""

import json

import pytest
from bundles import at
from ended_pods import HUNG, failing, says
from peer_errors import LOST_A_PEER
from process_events import PodEvents, recorded


@pytest.mark.parametrize("error", LOST_A_PEER.values(), ids=LOST_A_PEER.keys())
def test_a_rank_that_lost_its_peer_is_not_accused(judged, error):
    """Contract: the times in pods are rounded to seconds, so the peer's pod can seem to have ended first."""
    job = failing()
    says(job, 0, [f"[rank0]: {error}"])
    says(job, 1, ["[rank1]: ValueError: boom"])
    job.ended(0, 12, 1, message=json.dumps({"exit": 1}))
    job.ended(1, 13, 1, message=json.dumps({"exit": 1}))
    job.jobset(15, "Failed")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    assert "ValueError: boom" in verdict.explanation


WATCHDOG = [
    "[rank0]:[E1121 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.",
    "[rank0]:[E1121 ProcessGroupNCCL.cpp:695] [Rank 0] To avoid data inconsistency, we are taking the entire "
    "process down.",
    "terminate called after throwing an instance of 'c10::DistBackendError'",
]


@pytest.mark.parametrize("peer", ["hung", "raised"])
def test_a_rank_that_nccl_aborts_is_not_accused(judged, peer):
    """Contract: NCCL's watchdog ends a rank by SIGABRT when a peer does not take part in a collective."""
    job = failing()
    says(job, 0, WATCHDOG, code=-6)
    job.ended(0, 12, 1, message=json.dumps({"exit": 1}))
    if peer == "hung":
        lines = ["[rank 1] step 6 loss 0.5", "Current thread 0x0000 (most recent call first):", *HUNG[6:]]
        says(job, 1, lines, code=-15)
        gone = {"deletionTimestamp": at(43), "deletionGracePeriodSeconds": 30}
        job.ended(1, 14, 143, message="", metadata=gone)
    else:
        says(job, 1, ["[rank1]: ValueError: boom"])
        job.ended(1, 13, 1, message=json.dumps({"exit": 1}))
    job.jobset(15, "Failed")
    verdict = judged(job)
    cause = "rank.hung" if peer == "hung" else "rank.crashed"
    assert (verdict.cause, verdict.ranks) == (cause, [1]), verdict.explanation


BUS_ERROR = (
    "RuntimeError: DataLoader worker (pid 97) is killed by signal: Bus error. It is possible that "
    "dataloader's workers are out of shared memory. Please try to raise your shared memory limit."
)


@pytest.mark.parametrize(
    "lines",
    [
        [
            f"[rank1]: {BUS_ERROR}",
            "[rank1]: The above exception was the direct cause of the following exception:",
            "[rank1]: RuntimeError: DataLoader worker (pid(s) 97) exited unexpectedly",
        ],
        [
            "[rank1]: RuntimeError: unable to allocate shared memory(shm) for file </torch_71_42>: "
            "No space left on device (28)"
        ],
        [
            "[rank1]: torch.distributed.DistBackendError: NCCL error: unhandled system error. Last error: "
            "Error while creating shared memory segment /dev/shm/nccl-7dKq3R (size 9637888)"
        ],
    ],
    ids=["loader", "tensor", "nccl"],
)
def test_small_shared_memory_is_no_full_disk(judged, lines):
    """Contract: pytorch#16979, #5040. The advice names the volume to mount, whenever the error occurs."""
    job = failing()
    says(job, 1, lines)
    says(job, 0, ["[rank0]: RuntimeError: Connection closed by peer [10.0.0.1]:5"])
    job.ended(1, 12, 1, message=json.dumps({"exit": 1}))
    job.ended(0, 12, 1, message=json.dumps({"exit": 1}))
    job.jobset(15, "Failed")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("shm.small", [1]), verdict.explanation
    assert "medium: Memory at /dev/shm" in " ".join([verdict.explanation, *verdict.next])


MESH = "RuntimeError: Gloo connectFullMesh failed with [./gloo/transport/tcp/pair.cc:144] no error"


@pytest.mark.parametrize(
    ("port", "error", "is_advised"),
    [(1234, MESH, True), (1235, MESH, False), (1234, "ValueError: no checkpoint", False)],
    ids=["the same store", "another store", "another error"],
)
def test_failed_restart_is_explained_by_store_of_previous_one(judged, port, error, is_advised):
    """Contract: pytorch#135712. The quoted error is that of the last attempt, and the first attempt's error
    is also named."""
    job = recorded(failing())
    pod, first = PodEvents(job, 1), "RuntimeError: device-side assert"
    pod.agent(7, "--nnodes=2", "--max-restarts=1")
    for restart, (pid, mine, why) in enumerate([(20, 1234, first), (30, port, error)]):
        pod.workers(7, [(pid, 0, 1, 2)], restart=restart)
        pod.start(pid, "rank", ppid=7, RANK=1, LOCAL_RANK=0, WORLD_SIZE=2, MASTER_PORT=mine)
        if not restart:
            pod.add("group", pid, rank=1, world=2)
        pod.end(pid, 1, "exception", why)
        pod.add("failed", 7, failures=[(pid, 0, 1, 1, "To enable traceback see: …")])
    report = "E1121 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0"
    says(job, 1, [f"[rank1]: {first}", report, error])
    job.ended(1, 12, 1, message=json.dumps({"exit": 1}))
    job.jobset(15, "Failed")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    assert f"Its last log line: {error}" in verdict.explanation
    assert "Torchrun had restarted it: rank 1 ended with exit code 1" in verdict.explanation
    assert first in verdict.explanation
    assert ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in " ".join(verdict.next)) == is_advised
