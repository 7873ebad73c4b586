"""Pods that exit with 0 although their last output is an exception that ends the training.

skypilot#4421, pytorch_violet#5, horovod#1994.
"""

from __future__ import annotations

from collections.abc import Sequence

import bundles
import pytest
from failed_ranks import NOTES, TRACEBACK
from process_events import together

NCCL = "torch.distributed.DistBackendError: NCCL error in: x.cpp:1333, remote process exited"
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
COMMAND = "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1."


def ended(*logs: Sequence[str], per_node: int = 1) -> bundles.Job:
    """Return a healthy job in which the logs of the first pods end with these lines."""
    job = bundles.healthy(per_node=per_node)
    for index, lines in enumerate(logs):
        name = job.pod_name(index)
        job.logs[name] = [*job.logs[name], *(f"{bundles.at(11)} {line}" for line in lines)]
    return job


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([*TRACEBACK, NCCL], NCCL),
        ([*TRACEBACK, MEMORY, ""], MEMORY),
        ([*TRACEBACK, "torch.AcceleratorError: CUDA error: an illegal memory access", *NOTES], "CUDA error"),
        ([*TRACEBACK, "RuntimeError: CUDA error: device-side assert triggered"], "device-side"),
        ([*TRACEBACK, "RuntimeError: [x.cc:534] Connection closed by peer [10.0.0.7]:13"], "by peer"),
        ([*TRACEBACK, COMMAND], COMMAND),
        ([*TRACEBACK, "ray.train.base_trainer.TrainingFailedError: The Ray Train run failed."], "Ray Train"),
        (["E operations.cc:516] Horovod background loop uncaught exception: Read error"], "background loop"),
        ([*TRACEBACK, MEMORY, "pluto: finished run E2E-1", "[pluto-sync] 4 records were sent"], MEMORY),
        (["job failed", *TRACEBACK, MEMORY, "===== KONDUKTOR: finished with exit code: 0"], MEMORY),
    ],
)
def test_log_that_ends_with_exception_is_no_pass(judged, lines: list[str], error: str) -> None:
    verdict = judged(ended([], lines))
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "rank.stopped_early"), verdict.explanation
    assert (verdict.ranks, error in verdict.explanation) == ([1], True)
    assert verdict.explanation.startswith("The last line in the log of rank 1 is an exception, although")


def test_all_ranks_can_end_with_exception(judged) -> None:
    """Contract: pytorch_violet#5. All ranks logged the same number of steps."""
    verdict = judged(ended(*[[*TRACEBACK, MEMORY]] * 2))
    assert (verdict.verdict, verdict.ranks) == ("UNKNOWN", [0, 1])
    assert verdict.explanation.startswith("The last lines in the logs of ranks 0 and 1 are exceptions")


def test_recorded_exit_code_0_does_not_explain_exception(judged) -> None:
    job = ended([*TRACEBACK, MEMORY])
    assert judged(together(job)).cause == "rank.stopped_early"


def test_label_names_rank(judged) -> None:
    lines = [f"[rank3]: {line}" for line in (*TRACEBACK, MEMORY)]
    assert judged(ended([], lines, per_node=2)).ranks == [3]


@pytest.mark.parametrize(
    "lines",
    [
        [*TRACEBACK, MEMORY, "trying a smaller batch"],
        [*TRACEBACK, "ValueError: bad record 17"],
        ["Exception ignored in: <function Client.__del__ at 0x7f>", *TRACEBACK, NCCL],
        ["Exception in thread Thread-4:", *TRACEBACK, NCCL],
        ["--- Logging error ---", *TRACEBACK, NCCL],
        [
            "[ERROR] 2024-03-01 12:00:00 api: Error waiting on exit barrier. Elapsed: 0.2 seconds",
            *TRACEBACK,
            "torch.distributed.DistNetworkError: Connection reset by peer",
        ],
        [
            "W1001 12:00:00 71 torch/distributed/elastic/agent/server/api.py:900] could not shut down",
            *TRACEBACK,
            "torch.distributed.DistStoreError: Socket closed",
        ],
        [MEMORY],
        ["the last error was torch.OutOfMemoryError: CUDA out of memory."],
    ],
)
def test_other_output_proves_nothing(judged, lines: list[str]) -> None:
    assert judged(ended([], lines)).verdict == "PASS"
