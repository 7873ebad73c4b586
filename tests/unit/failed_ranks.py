"""Jobs whose node 1 fails with a given log, as public bug reports have them."""

from __future__ import annotations

import json
from dataclasses import dataclass

import bundles
from ended_pods import REPORT, stamped

PEER = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
TRACEBACK = ["Traceback (most recent call last):", '  File "/w/train.py", line 3, in <module>', "    main()"]
NOTES = [
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below "
    "might be incorrect.",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
    "",
]


def of(rank: int, *lines: str) -> list[str]:
    """Return an exception with the label that PyTorch writes before each line."""
    return [f"[rank{rank}]: {line}" for line in (*TRACEBACK, *lines)]


def watchdog(rank: int, error: str) -> list[str]:
    """Return what NCCL's watchdog writes before it aborts a rank because of a CUDA error."""
    text = f"[PG 0 (default_pg) Rank {rank}] Process group watchdog thread terminated with exception: {error}"
    return [
        f"[rank{rank}]:[E817 17:40:34.227531918 ProcessGroupNCCL.cpp:1515] {text}",
        *NOTES,
        "Exception raised from c10_cuda_check_implementation at x.cpp:43 (most recent call first):",
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x153667 in /x/libc10.so)",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        f"  what():  {text}",
        *NOTES,
    ]


@dataclass(frozen=True)
class Case:
    """The log of node 1, where the job fails, and the verdict. `rank` is the one torchrun's report names."""

    lines: list[str]
    cause: str
    ranks: list[int]
    says: str
    advice: str = ""
    rank: int = 1
    code: int = 1
    per_node: int = 1


def job_of(case: Case) -> bundles.Job:
    """Return a job whose node 1 has the case's log. The ranks of node 0 lost their peers a second earlier."""
    job = bundles.healthy(per_node=case.per_node)
    job.drop("workload", 2)
    job.drop("jobset", 2)
    for index in range(2):
        job.drop_pod(index, after=10)
    for rank in range(job.ranks):
        job.truth[rank] = job.rows(rank)[:4]
    for index, lines, rank, code in ((0, of(0, PEER), 0, 1), (1, case.lines, case.rank, case.code)):
        report = stamped(REPORT, rank=rank, code=code, shell=1)
        job.logs[job.pod_name(index)] = stamped(lines) + report
        job.ended(index, 12 + index, 1, message=json.dumps({"exit": 1}))
    job.jobset(15, "Failed")
    return job


UNREACHED = (
    "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to "
    "connect to ({}, {})."
)
WAITED = (
    "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined."
)
"""Errors of a rank that could not connect to rank 0, and of rank 0, which waited for it."""


def starting(zero: list[str], one: list[str], per_node: int = 1, code: int = 1) -> bundles.Job:
    """Return a job whose two nodes end with these lines before a rank has logged anything."""
    job = job_of(Case(one, "", [], "", rank=per_node, code=code, per_node=per_node))
    job.truth, job.points, job.runs, job.attachments = {}, [], [], []
    job.logs[job.pod_name(0)] = stamped(zero) + stamped(REPORT, rank=0, code=1, shell=1)
    return job
