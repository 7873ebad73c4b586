"""Distributed checkpoints: all ranks raise one exception, and the ranks that it lists are to blame.

pytorch#148252, dlms-are-super-data-learners#4, SimpleTuner#1880.
"""

import json
import re

import bundles
import pytest
from ended_pods import REPORT, stamped

MISSING = "RuntimeError: Missing key in checkpoint state_dict: model.2.weight."
FULL = "OSError: [Errno 28] No space left on device: '/ckpt/__3_0.distcp'"
OTHER = "RuntimeError: Missing key in checkpoint state_dict: model.3.bias."
LOST = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
BROKEN_PIPE = "[W1130 05:00:12.5 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=6): Broken pipe"


def raised(rank: int, failed: list[int], *errors: str, labelled: bool = True) -> list[str]:
    """Return what a rank logs if the ranks in `failed` could not save or load their part."""
    name = "torch.distributed.checkpoint.api.CheckpointException"
    lines = ["Traceback (most recent call last):", '  File "/w/train.py", line 3, in <module>', "    main()"]
    lines.append(f"{name}: CheckpointException ranks:dict_keys({failed})")
    for each, error in zip(failed, errors * len(failed), strict=False):
        lines += [
            f"Traceback (most recent call last): (RANK {each})",
            '  File "/x/torch/distributed/checkpoint/utils.py", line 164, in reduce_scatter',
            "    local_data = map_fun()",
            "                 ^^^^^^^^^",
            error,
            "",
        ]
    return [f"[rank{rank}]: {line}" for line in lines] if labelled else lines


def job_of(*logs: list[str], per_node: int = 1) -> bundles.Job:
    """Return a job whose two nodes have these logs. Node 0 ends a second before node 1."""
    job = bundles.healthy(per_node=per_node)
    job.drop("workload", 2)
    job.drop("jobset", 2)
    for index, lines in enumerate(logs):
        job.drop_pod(index, after=10)
        report = stamped(REPORT, rank=index * per_node, code=1, shell=1)
        job.logs[job.pod_name(index)] = stamped(lines) + report
        job.ended(index, 12 + index, 1, message=json.dumps({"exit": 1}))
    for rank in range(job.ranks):
        job.truth[rank] = job.rows(rank)[:4]
    job.jobset(15, "Failed")
    return job


CASES = {
    "a missing key in one rank": (
        job_of(raised(0, [1], MISSING), raised(1, [1], MISSING)),
        ("rank.crashed", [1], f"Rank 1 .*ranks 0 and 1 raised the error: {MISSING}", "names or shapes"),
    ),
    "a full disk in one rank of a pod": (
        job_of(
            [*raised(1, [3], FULL), *raised(0, [3], FULL)],
            [*raised(2, [3], FULL), *raised(3, [3], FULL)],
            per_node=2,
        ),
        ("rank.write_failed", [3], "Rank 3 .*No space left", ""),
    ),
    "two ranks with different errors": (
        job_of(
            [*raised(0, [1, 2], MISSING, OTHER), *raised(1, [1, 2], MISSING, OTHER)],
            [*raised(2, [1, 2], MISSING, OTHER), *raised(3, [1, 2], MISSING, OTHER)],
            per_node=2,
        ),
        ("rank.crashed", [1, 2], f"Ranks 1 and 2 .*{MISSING}", ""),
    ),
    "all ranks": (
        job_of(raised(0, [0, 1], MISSING), raised(1, [0, 1], MISSING)),
        ("rank.crashed", [0, 1], MISSING, ""),
    ),
    "without the labels of ranks, and with a broken store afterwards": (
        job_of(
            [*raised(0, [1], MISSING, labelled=False), BROKEN_PIPE],
            [*raised(1, [1], MISSING, labelled=False), BROKEN_PIPE],
        ),
        ("rank.crashed", [1], MISSING, ""),
    ),
    "numbers of a smaller process group": (
        job_of(
            [f"[rank0]: {LOST}", f"[rank1]: {LOST}"],
            [*raised(2, [0], MISSING), *raised(3, [0], MISSING)],
            per_node=2,
        ),
        ("rank.crashed", [], "Rank 0 of the process group .*ranks 2 and 3 raised", ""),
    ),
    "an exception that the program survived": (
        job_of(["step 6 loss 0.5", f"[rank0]: {LOST}"], [*raised(1, [0], MISSING), "[rank1]: KeyError: 'x'"]),
        ("rank.crashed", [1], "KeyError: 'x'", ""),
    ),
    "an exception that the program survived, without a message": (
        job_of(
            ["step 6 loss 0.5", f"[rank0]: {LOST}"],
            [*raised(1, [0], "AssertionError"), "[rank1]: AssertionError: loss is not finite"],
        ),
        ("rank.crashed", [1], "AssertionError: loss is not finite", ""),
    ),
    "labels of ranks that the job does not have": (
        job_of(raised(7, [7], MISSING), raised(7, [7], MISSING)),
        ("rank.crashed", [], f"Rank 7 of the process group .*{MISSING}", ""),
    ),
    "a long error": (
        job_of(raised(0, [1], MISSING + "x" * 10_000), raised(1, [1], MISSING + "x" * 10_000)),
        ("rank.crashed", [1], f"{MISSING}x{{1,300}}( |$)", ""),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_ranks_that_failed_in_a_checkpoint_are_named(judged, name: str) -> None:
    """Contract: the rank that logs the exception first is not to blame."""
    job, (cause, ranks, says, advice) = CASES[name]
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", cause, ranks), verdict.explanation
    assert re.search(says, verdict.explanation), verdict.explanation
    assert advice in verdict.next[-1]
