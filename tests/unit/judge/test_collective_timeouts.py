"""Timeouts in collective operations, with logs from public bug reports: the rank that did not take part, if
any.

pytorch#118369, nccl#1111, verl#1158, LlamaFactory#7396 and #8261, OFA#271, AnySplat#61, OpenRLHF#624,
sglang#3226, gpustack#2125, dmlcloud#47, aws-ofi-nccl#161 and #663, nccl#426.
"""

import json
import re

import bundles
import pytest
from ended_pods import REPORT, failing, says, stamped

SOURCE = "ProcessGroupNCCL.cpp"
GLOO = (
    "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation"
)
LOST = (
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
)


def timed_out(
    rank: int,
    number: int,
    operation: str = "ALLREDUCE",
    elements: int | None = 4096,
    *,
    enqueued: int | None = None,
    group: str = "0(default_pg)",
    label: bool = True,
) -> list[str]:
    """Return the lines that NCCL's watchdog logs for a rank whose collective timed out. `label` adds
    PyTorch's rank label."""
    sizes = "" if elements is None else f"NumelIn={elements}, NumelOut={elements}, "
    work = f"WorkNCCL(SeqNum={number}, OpType={operation}, {sizes}Timeout(ms)=600000)"
    why = (
        f"Watchdog caught collective operation timeout: {work} ran for 600012 milliseconds before timing out."
    )
    begin = f"[rank{rank}]:" if label else ""
    last = number if enqueued is None else enqueued
    where = f"[PG ID 0 PG GUID {group} Rank {rank}]"
    return [
        f"{begin}[E817 17:40:34.2275 {SOURCE}:632] [Rank {rank}] {why}",
        f"{begin}[E817 17:40:34.2375 {SOURCE}:1785] {where} Exception (either an error or timeout) detected "
        f"by watchdog at work: {number}, last enqueued NCCL work: {last}, last completed NCCL work: 1.",
        f"{begin}[E817 17:40:34.2575 {SOURCE}:701] [Rank {rank}] To avoid data inconsistency, we are taking "
        "the entire process down.",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        f"  what():  {where} Process group watchdog thread terminated with exception: [Rank {rank}] {why}",
    ]


def old(rank: int, number: int) -> list[str]:
    """Return the lines that PyTorch 1.13 logs."""
    work = f"WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, Timeout(ms)=1800000)"
    text = f"[Rank {rank}] Watchdog caught collective operation timeout: {work} ran for 1802212 milliseconds "
    return [f"[E {SOURCE}:737] {text}before timing out."]


def dumped(rank: int, enqueued: int) -> list[str]:
    """Return the lines that a rank logs if it is ended because another rank has timed out."""
    text = (
        "Received a dump signal due to a collective timeout from rank 0 and we will try our best to dump the "
    )
    text += f"debug info. Last enqueued NCCL work: {enqueued}, last completed NCCL work: {enqueued}."
    return [
        f"[rank{rank}]:[E817 17:40:34.2 {SOURCE}:1383] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] {text}"
    ]


def lost(rank: int) -> list[str]:
    """Return the lines that a rank logs if its RDMA connection failed."""
    detail = (
        f"NET/IB: Got completion from peer 10.0.0.{rank}<40000> with status=12 opcode=0 len=0 vendor err 129"
    )
    return [f"[rank{rank}]: {LOST}", f"[rank{rank}]: Last error:", f"[rank{rank}]: {detail}"]


def mesh(rank: int, reason: str = "pair.cc:144] no error") -> list[str]:
    """Return gloo's exception for a rank that cannot connect to all others."""
    return [f"[rank{rank}]: RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/{reason}"]


def libfabric(rank: int, message: str) -> list[str]:
    """Return NCCL's exception if its plug-in for libfabric fails."""
    text = f"node:79:79 [0] nccl_net_ofi:459 NCCL WARN NET/OFI {message}"
    return [
        text,
        f"[rank{rank}]: RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:290, unhandled system error",
    ]


def infiniband(rank: int, completion: str) -> list[str]:
    """Return NCCL's exception if its connection through InfiniBand or RoCE fails."""
    text = f"w-1:946:988 [0] transport/net_ib.cc:839 NCCL WARN NET/IB : Got completion {completion}"
    return [
        text,
        f"[rank{rank}]: RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:911, unhandled system error",
    ]


def differs(rank: int, own: str, other: str) -> list[str]:
    """Return the error that TORCH_DISTRIBUTED_DEBUG=DETAIL adds, for ranks 0 and 1."""
    prints = [f"CollectiveFingerPrint(SequenceNumber=3, OpType={each})" for each in (own, other)]
    text = f"Rank {rank} is running collective: {prints[0]}, but Rank {1 - rank} is running collective: "
    text += f"{prints[1]}."
    return [f"[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. {text}"]


CASES = {
    "all waited for the same operation": (
        (timed_out(0, 7), timed_out(1, 7)),
        ("collective.hung", [], "all ranks called collective operation 7 .ALLREDUCE of 4096 elements.*600 s"),
    ),
    "one rank had called more operations before it waited": (
        (timed_out(0, 7, enqueued=12), timed_out(1, 7)),
        ("collective.hung", [], "operation 7"),
    ),
    "the logs of an old PyTorch": ((old(0, 9), old(1, 9)), ("collective.hung", [], "operation 9.*1800 s")),
    "the ranks waited in different operations": (
        (timed_out(0, 96120), timed_out(1, 64088, "_ALLGATHER_BASE", 2)),
        (
            "collective.mismatch",
            [0, 1],
            "rank 0 waited in operation 96120 .*rank 1 in operation 64088 .ALLGATHER",
        ),
    ),
    "different types": (
        (timed_out(0, 7), timed_out(1, 7, "BROADCAST")),
        ("collective.mismatch", [0, 1], "rank 0 called ALLREDUCE .*rank 1 called BROADCAST"),
    ),
    "different sizes": (
        (timed_out(0, 7), timed_out(1, 7, elements=4000)),
        ("collective.mismatch", [0, 1], "ALLREDUCE of 4096 elements and rank 1 called ALLREDUCE of 4000"),
    ),
    "sizes that may differ": (
        (timed_out(0, 7, "ALLTOALL"), timed_out(1, 7, "ALLTOALL", 4000)),
        ("collective.hung", [], "operation 7 .ALLTOALL"),
    ),
    "one rank is behind": (
        (timed_out(0, 7), dumped(1, 6)),
        ("rank.hung", [1], "rank 1 .*did not call collective operation 7 .*for which rank 0 waited"),
    ),
    "one rank was ended before its own timeout": (
        (timed_out(0, 7), dumped(1, 7)),
        ("collective.hung", [], "all ranks called"),
    ),
    "without the label of a rank": (
        (timed_out(0, 7, label=False), timed_out(1, 7, "BROADCAST", label=False)),
        ("collective.mismatch", [0, 1], ""),
    ),
    "PyTorch compares the operations": (
        (differs(0, "ALLREDUCE", "BROADCAST"), differs(1, "BROADCAST", "ALLREDUCE")),
        ("collective.mismatch", [0, 1], "rank 0 called .*ALLREDUCE.*rank 1 called .*BROADCAST"),
    ),
    "rank 0 names who did not come to a barrier": (
        (
            ["[rank0]: RuntimeError: Rank 1 failed to pass monitoredBarrier in 1800000 ms"],
            [f"[rank1]: {GLOO}"],
        ),
        ("rank.hung", [1], "rank 1 .*failed to pass monitoredBarrier"),
    ),
    "gloo, all ranks": (
        ([f"[rank0]: {GLOO}"], [f"[rank1]: {GLOO}"]),
        ("collective.hung", [], "ranks 0 and 1 timed out while they waited"),
    ),
    "each rank lost the other": (
        (lost(0), lost(1)),
        ("collective.failed", [], "ranks 0 and 1 lost the connection .*status=12"),
    ),
    "one rank timed out, and the other lost it": (
        (lost(0), timed_out(1, 7)),
        ("collective.hung", [], "rank 1 timed out while waiting .*rank 0 lost the connection"),
    ),
    "gloo cannot connect the ranks": (
        (mesh(0), mesh(1, "pair.h:301] Connect timeout [none]")),
        ("collective.failed", [], "ranks 0 and 1 could not connect to each other.*connectFullMesh"),
    ),
    "libfabric cannot reach any peer": (
        (
            libfabric(0, "Request 0x7 completed with error. RC: 20."),
            libfabric(1, "Request 0x7 completed with error."),
        ),
        ("collective.failed", [], "ranks 0 and 1 lost the connection .*RC: 20"),
    ),
    "InfiniBand cannot reach any peer": (
        tuple(infiniband(rank, "with error 12, opcode 1, len 0, vendor err 129") for rank in range(2)),
        ("collective.failed", [], "ranks 0 and 1 lost the connection .*error 12"),
    ),
    "libfabric cannot use the addresses of the peers": (
        tuple(libfabric(rank, "Unable to insert remote address into address vector") for rank in range(2)),
        ("collective.failed", [], "ranks 0 and 1 lost the connection .*Unable to insert remote address"),
    ),
    "one rank has an error of its own": (
        (lost(0), ["[rank1]: ValueError: boom"]),
        ("rank.crashed", [1], "boom"),
    ),
}


def ended(job: bundles.Job) -> bundles.Job:
    """Return the job, after all of its pods have ended in the same second."""
    for index in range(job.nodes):
        job.ended(index, 12, 1, message=json.dumps({"exit": 1}))
    job.jobset(15, "Failed")
    return job


@pytest.mark.parametrize("name", CASES)
def test_both_logs_show_which_rank_was_absent(judged, name):
    logs, (cause, ranks, pattern) = CASES[name]
    job = failing()
    for index, lines in enumerate(logs):
        says(job, index, lines, code=-6 if "terminate" in "".join(lines) else 1)
    verdict = judged(ended(job))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", cause, ranks), verdict.explanation
    explanation = verdict.explanation[0].lower() + verdict.explanation[1:]
    assert re.search(pattern, explanation), explanation


@pytest.mark.parametrize(
    ("logs", "advice"),
    [
        ((mesh(0), mesh(1)), "GLOO_SOCKET_IFNAME"),
        (
            tuple(libfabric(rank, "Request completed with error. RC: 21") for rank in range(2)),
            "security group",
        ),
        (tuple(infiniband(rank, "with error 12, opcode 1") for rank in range(2)), "NCCL_IB_GID_INDEX"),
    ],
    ids=["gloo", "libfabric", "infiniband"],
)
def test_the_advice_names_the_network_that_the_ranks_used(judged, logs, advice):
    job = failing()
    for index, lines in enumerate(logs):
        says(job, index, lines)
    verdict = judged(ended(job))
    assert advice in verdict.next[-1], verdict.next


def test_ranks_asked_to_stop_have_not_lost_peer(judged):
    job = failing()
    for index in range(2):
        signalled = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15"
        says(job, index, [signalled])
    verdict = judged(ended(job))
    assert not verdict.cause.startswith("collective."), verdict.explanation


def of_eight(lines: dict[int, list[str]]) -> bundles.Job:
    """Return a job of two pods with four ranks each. `lines` maps ranks to their logs."""
    job = bundles.healthy(per_node=4)
    job.drop("workload", 2)
    job.drop("jobset", 2)
    for index in range(2):
        job.drop_pod(index, after=10)
        own = [line for rank in range(4 * index, 4 * index + 4) for line in lines.get(rank, [])]
        job.logs[job.pod_name(index)] = stamped(own) + stamped(REPORT, rank=4 * index, code=-6, shell=1)
    for rank in range(job.ranks):
        job.truth[rank] = job.rows(rank)[:4]
    return ended(job)


def test_the_minority_of_eight_ranks_is_accused(judged):
    lines = {rank: timed_out(rank, 7, "BROADCAST" if rank == 5 else "ALLREDUCE") for rank in range(8)}
    verdict = judged(of_eight(lines))
    assert (verdict.cause, verdict.ranks) == ("collective.mismatch", [5]), verdict.explanation


def test_a_rank_that_called_one_operation_more_is_accused(judged):
    lines = {rank: timed_out(rank, 8 if rank == 2 else 7) for rank in range(8)}
    verdict = judged(of_eight(lines))
    assert (verdict.cause, verdict.ranks) == ("collective.mismatch", [2]), verdict.explanation


def test_process_groups_are_compared_apart(judged):
    """Contract: sequence numbers count the operations in one process group, so they are not compared across
    groups."""
    group = {rank: f"{1 + rank // 4}(mesh_tp)" for rank in range(8)}
    lines = {rank: timed_out(rank, 7 + 20 * (rank // 4), group=group[rank]) for rank in range(8)}
    verdict = judged(of_eight(lines))
    assert verdict.cause not in ("collective.mismatch", "rank.hung"), verdict.explanation


def test_an_earlier_attempt_is_not_compared(judged):
    job = failing()
    says(job, 0, timed_out(0, 7), code=-6)
    says(job, 1, [*timed_out(1, 3, "BROADCAST"), REPORT[0].format(code=-6), *timed_out(1, 7)], code=-6)
    verdict = judged(ended(job))
    assert (verdict.cause, verdict.ranks) == ("collective.hung", []), verdict.explanation


def test_rank_that_job_does_not_have_is_not_accused(judged):
    """Contract: a program can print any line, even numbers that are too long for Python to parse."""
    job = failing()
    forged = f"RuntimeError: Rank 7 failed to pass monitoredBarrier in 9 ms; [rank{'9' * 5000}]: x"
    says(job, 0, [*timed_out(0, 7), *timed_out(99, 9)], code=-6)
    says(job, 1, [*timed_out(1, 7), forged], code=-6)
    verdict = judged(ended(job))
    assert (verdict.cause, verdict.ranks) == ("collective.hung", []), verdict.explanation
