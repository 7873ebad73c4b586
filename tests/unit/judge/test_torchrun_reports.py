"""Logs that contain only torchrun's report, because the ranks' output is written to files or filtered.

The report has the form that torch.distributed.elastic gives it for functions with the decorator `record`.
"""

from dataclasses import dataclass

import pytest
from ended_pods import stamped
from failed_ranks import PEER, Case, job_of, of

STACK = [
    "Traceback (most recent call last):",
    '    File "/x/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 348, in wrapper',
    "      return f(*args, **kwargs)",
    '    File "/w/train.py", line 3, in main',
    "      load(shard)",
]
SHARD = "ValueError: bad shard 7"
FULL = "OSError: [Errno 28] No space left on device: '/out/1.pt'"
SEGMENT = (
    "torch.distributed.DistBackendError: NCCL error in: x.cpp:94, unhandled system error, NCCL version 2.27",
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. ",
    "Last error:",
    "Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes, error: No space left on device (28)",
)


@dataclass(frozen=True)
class Failure:
    """A failure in torchrun's report: the rank, the lines of its error, or the signal that ended it."""

    rank: int
    error: tuple[str, ...] = ()
    code: int = 1

    def lines(self) -> list[str]:
        traceback = [*STACK, *(f"  {line}" for line in self.error)]
        if not self.error:
            traceback = [f"Signal {-self.code} received by PID 68"]
        first, *others = traceback
        return [
            "[0]:",
            "  time      : 2026-11-21_05:00:12",
            "  host      : node2",
            f"  rank      : {self.rank} (local_rank: {self.rank % 2})",
            f"  exitcode  : {self.code} (pid: 68)" + (" (SIGSEGV)" if self.code == -11 else ""),
            "  error_file: /tmp/torchelastic_1/none_2/attempt_0/0/error.json",
            f"  traceback : {first}",
            *others,
        ]


def report(root_cause: Failure, *others: Failure) -> list[str]:
    return [
        f"E1121 05:00:12.1 64 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: "
        f"{root_cause.code}) local_rank: 0 (pid: 68) of binary: /usr/bin/python3.13",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "=" * 60,
        "/workspace/train.py FAILED",
        "-" * 60,
        "Failures:",
        *([line for each in others for line in each.lines()] or ["  <NO_OTHER_FAILURES>"]),
        "-" * 60,
        "Root Cause (first observed failure):",
        *root_cause.lines(),
        "=" * 60,
        "===== KONDUKTOR: Running task took 26 seconds and finished with exit code: 1 =====",
    ]


LOST = (PEER,)
CASES = {
    "one rank with its own error": ([], [Failure(1, (SHARD,))], 1, ("rank.crashed", [1], SHARD)),
    "a full disk": ([], [Failure(1, (FULL,))], 1, ("rank.write_failed", [1], FULL)),
    "a full /dev/shm": ([], [Failure(1, SEGMENT)], 1, ("shm.small", [1], "failed to extend")),
    "a rank that lost its peer is named as the root cause": (
        [],
        [Failure(2, LOST), Failure(3, (SHARD,))],
        2,
        ("rank.crashed", [3], SHARD),
    ),
    "a rank that lost its peer, beside one with a segmentation fault": (
        of(2, PEER),
        [Failure(2, LOST), Failure(3, code=-11)],
        2,
        ("rank.killed", [3], "SIGSEGV"),
    ),
    "the output of all ranks but the first is filtered (torchtitan)": (
        ["[rank2] step 5", *of(2, PEER)],
        [Failure(3, (SHARD,)), Failure(2, LOST)],
        2,
        ("rank.crashed", [3], SHARD),
    ),
    "an error in the log is quoted from there": (
        of(1, SHARD),
        [Failure(1, (SHARD,))],
        1,
        ("rank.crashed", [1], f"[rank1]: {SHARD}"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_traceback_in_report_counts_if_log_has_no_other(judged, name: str) -> None:
    lines, failures, per_node, (cause, ranks, says) = CASES[name]
    job = job_of(Case([], "", [], "", per_node=per_node))
    job.logs[job.pod_name(0)] = stamped(report(Failure(0, LOST)))
    job.logs[job.pod_name(1)] = stamped([*lines, *report(*failures)])
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", cause, ranks), verdict.explanation
    assert says in verdict.explanation.partition("After it")[0], verdict.explanation


def test_report_in_which_all_ranks_lost_peer_is_consequence(judged) -> None:
    job = job_of(Case([*of(3, SHARD)], "", [], "", rank=3, per_node=2))
    job.logs[job.pod_name(0)] = stamped(report(Failure(0, LOST), Failure(1, LOST)))
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [3]), verdict.explanation
    assert f"After it: ranks 0 and 1 (pod {job.pod_name(0)}" in verdict.explanation
    assert PEER in verdict.explanation
