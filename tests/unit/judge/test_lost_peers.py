"""A rank that ended because a peer did, or for want of shared memory, by the words of its libraries."""

import json

import pytest
from bundles import at
from ended_pods import HUNG, failing, says
from peer_errors import LOST_A_PEER


@pytest.mark.parametrize("error", LOST_A_PEER.values(), ids=LOST_A_PEER.keys())
def test_a_rank_that_lost_its_peer_is_not_accused(judged, error):
    """Contract: times of pods are of whole seconds, so the peer's pod can seem to have ended first."""
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
    """Contract: pytorch#16979, #5040. What to mount is in the advice, whenever it occurs."""
    job = failing()
    says(job, 1, lines)
    says(job, 0, ["[rank0]: RuntimeError: Connection closed by peer [10.0.0.1]:5"])
    job.ended(1, 12, 1, message=json.dumps({"exit": 1}))
    job.ended(0, 12, 1, message=json.dumps({"exit": 1}))
    job.jobset(15, "Failed")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("shm.small", [1]), verdict.explanation
    assert "medium: Memory at /dev/shm" in " ".join([verdict.explanation, *verdict.next])
