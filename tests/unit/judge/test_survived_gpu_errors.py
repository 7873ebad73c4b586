"""Errors after which a GPU's results cannot be trusted, in the logs of ranks that exited with 0.

ShapeWorks#2621, VIAME#146, RegTR#33, GauHuman#21, diffusion-point-cloud#12, Abnormal_Event_Detection#19,
pytorch#97191, pytorch#97066, MUST#7.
"""

from __future__ import annotations

from collections.abc import Sequence

import bundles
import pytest
from failed_ranks import NOTES, TRACEBACK
from process_events import together

ILLEGAL = "CUDA error: an illegal memory access was encountered"
TIMEOUT = (
    "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, "
    "NumelIn=4, NumelOut=4, Timeout(ms)=10000) ran for 10917 milliseconds before timing out."
)
CORRUPTED = (
    "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, "
    "subsequent GPU operations might run on corrupted/incomplete data."
)
NO_KERNEL = "CUDA error: no kernel image is available for execution on the device"
WATCHDOG = "[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607]"
RESTARTED = (
    "E1130 12:00:00 7 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) pid: 71"
)


def ended(lines: Sequence[str], at: float = 11, per_node: int = 1) -> bundles.Job:
    """Return a healthy job in which node 1 logged these lines `at` seconds after its start."""
    job = bundles.healthy(per_node=per_node)
    name = job.pod_name(1)
    lines = [*job.logs[name], *(f"{bundles.at(at)} {line}" for line in lines)]
    job.logs[name] = sorted(lines, key=lambda line: line.partition("Z ")[0])
    return job


STICKY = {
    "a logger's line (RegTR #33)": [
        f"06/26 18:54:31 [ERROR] trainer - <class 'RuntimeError'> at trainer.py:101 - {ILLEGAL}",
        *NOTES,
    ],
    "the representation of an exception (VIAME #146)": [
        "ERROR: an <class 'RuntimeError'> error occurred in the train loop: "
        "RuntimeError('CUDA error: device-side assert triggered',)",
    ],
    "the name of the error (GauHuman #21)": [
        "merge_sort: failed to synchronize: cudaErrorIllegalAddress: an illegal memory access was encountered"
    ],
    "the number of the error (diffusion-point-cloud #12)": ["skipping batch 17: CUDA kernel failed : 700"],
    "the driver's name of the error (Abnormal_Event_Detection #19)": [
        "E cuda_driver.cc:981] failed to synchronize the stop event: CUDA_ERROR_LAUNCH_FAILED: unspecified"
    ],
    "a traceback before other lines": [*TRACEBACK, f"torch.AcceleratorError: {ILLEGAL}", *NOTES],
    "the watchdog of NCCL": [f"[rank1]:{WATCHDOG} watchdog thread terminated with exception: {ILLEGAL}"],
    "NCCL": ["NCCL WARN Cuda failure 700 'an illegal memory access was encountered'"],
    "Triton": ["batch 4: Triton Error [CUDA]: misaligned address"],
    "ROCm": ["batch 4: HIP error: unspecified launch failure"],
    "a warning of the program": [f"train.py:7: UserWarning: batch 4 is skipped: {ILLEGAL}"],
    "a warning of PyTorch": [
        "[W CUDAGuardImpl.h:115] Warning: CUDA warning: an illegal memory access was encountered (function x)"
    ],
    "an ECC error": ["batch 4: CUDA error: uncorrectable ECC error encountered"],
    "a timeout that did not end the process (pytorch #97191)": [f"[rank1]:{WATCHDOG} {TIMEOUT}"],
    "corrupted data (pytorch #97066, MUST #7)": [f"[E ProcessGroupNCCL.cpp:341] {CORRUPTED}"],
}


@pytest.mark.parametrize("at", [1, 11])
@pytest.mark.parametrize("name", STICKY)
def test_error_that_makes_later_results_unreliable_is_no_pass(judged, name: str, at: float) -> None:
    """Contract: this applies even if the program continues, logs all points, and exits with 0."""
    verdict = judged(ended([*STICKY[name], "epoch 2 done"], at))
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "rank.stopped_early"), verdict.explanation
    assert (verdict.ranks, "rank 1" in verdict.explanation.lower()) == ([1], True)


def test_explanation_and_advice_name_the_context(judged) -> None:
    verdict = judged(ended([f"batch 7 failed: {ILLEGAL}", *[f"batch {n}: {ILLEGAL}" for n in range(8, 30)]]))
    assert "the process that logged this error could not use its GPU any more" in verdict.explanation
    assert "batch 7 failed" in verdict.explanation
    assert "CUDA_LAUNCH_BLOCKING=1" in verdict.next[-1]


def test_explanation_and_advice_name_the_timeout(judged) -> None:
    verdict = judged(ended([f"[rank1]:{WATCHDOG} {TIMEOUT}"]))
    assert "a collective operation did not complete" in verdict.explanation
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" in verdict.next[-1]


@pytest.mark.parametrize(
    ("line", "ranks", "says"),
    [
        (f"batch 7 failed: {ILLEGAL}", [2, 3], "At least one of ranks 2 and 3"),
        (f"[rank3]: batch 7 failed: {ILLEGAL}", [3], "Rank 3"),
        (f"[default1]:batch 7 failed: {ILLEGAL}", [3], "Rank 3"),
    ],
)
def test_ranks_of_error_are_named(judged, line: str, ranks: list[int], says: str) -> None:
    verdict = judged(ended([line, "done"], per_node=2))
    assert (verdict.ranks, verdict.explanation.startswith(says)) == (ranks, True), verdict.explanation


@pytest.mark.parametrize(
    "lines",
    [
        ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "smaller batch"],
        [f"fused kernel is not available: {NO_KERNEL}", "using the native kernel"],
        ["CUDA error: invalid device ordinal", "using the CPU"],
        ["set max_split_size to avoid CUDA error: an illegal memory access was encountered"],
        ["If you see CUDA error: device-side assert triggered, check the labels"],
        ["[rank1]:[W321 ProcessGroupNCCL.cpp:607] CUDA warning: driver shutting down"],
        ["CUDA error 7000 times faster"],
        ["the document says: an illegal memory access was encountered"],
        [f"Failed to benchmark choice triton_mm_7 in subprocess. It will be ignored: {ILLEGAL}"],
        [f"[rank1]: RuntimeError: {ILLEGAL}", RESTARTED, "step 1 loss 0.5"],
    ],
)
def test_handled_errors_and_other_processes_prove_nothing(judged, lines: list[str]) -> None:
    """Contract: an out-of-memory error, a missing kernel or an earlier process leaves the GPU usable."""
    verdict = judged(ended(lines, 1))
    assert verdict.verdict == "PASS", verdict.explanation


@pytest.mark.parametrize(("at", "expected"), [(9, "PASS"), (11, "UNKNOWN")])
def test_error_before_start_of_process_is_not_its_own(judged, at: float, expected: str) -> None:
    """Contract: a supervisor that started the program again, without torchrun, gave it a new context."""
    job = together(ended([f"worker died: {ILLEGAL}", "starting again"], at))
    assert judged(job).verdict == expected


UNUSABLE = (
    f"[error] Exception Caught: AcceleratorError: {NO_KERNEL}",
    "training failed: CUDA error: invalid device function",
    "ERROR: error in the train loop: RuntimeError('CUDA out of memory. Tried to allocate 20.00 MiB',)",
    "ERROR: RuntimeError('CUDA error: all CUDA-capable devices are busy or unavailable')",
)
COMPLETE = "[info]  DeepSSM: Training complete.  Duration: 75.3 seconds"


@pytest.mark.parametrize("line", UNUSABLE)
def test_unusable_gpu_after_last_point_is_no_pass(judged, line: str) -> None:
    """Contract: ShapeWorks #2621."""
    verdict = judged(ended([line, *NOTES, COMPLETE]))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("UNKNOWN", "rank.stopped_early", [1])
    assert "logged no point after a GPU error" in verdict.explanation


@pytest.mark.parametrize("line", UNUSABLE)
def test_rank_that_logs_after_probing_its_gpu_used_another_device(judged, line: str) -> None:
    assert judged(ended([line, *NOTES, COMPLETE], 1)).verdict == "PASS"
