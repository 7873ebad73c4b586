"""The kernel's messages about GPUs in a rank's log: nvidia-docker#1553, NVSentinel#155, returnn#1486."""

from __future__ import annotations

import pytest
from failed_ranks import NOTES, PEER, Case, job_of, of, watchdog

LOST = "[1084456.074562] NVRM: Xid (PCI:0000:09:00): 79, pid=0, GPU has fallen off the bus."
LOST_WITHOUT_XID = "               NVRM: fallen off the bus and is not responding to commands."
ECC = "[Tue Nov 21 05:00:11 2026] NVRM: Xid (PCI:0000:09:00): 95, pid=812, Uncontained ECC error."
NVLINK = "[812.1] NVRM: Xid (PCI:0000:09:00): 74, pid=812, name=python, NVLink: fatal error"
OF_A_PROGRAM = "[812.1] NVRM: Xid (PCI:0000:09:00): 31, pid=812, name=python, MMU Fault"
UNSPECIFIED = "CUDA error: unspecified launch failure"
ILLEGAL = "CUDA error: an illegal memory access was encountered"


@pytest.mark.parametrize(
    ("message", "cause"),
    [(LOST, "gpu.lost"), (LOST_WITHOUT_XID, "gpu.lost"), (ECC, "gpu.ecc"), (NVLINK, "gpu.nvlink")],
)
@pytest.mark.parametrize("aborted", [True, False])
def test_gpu_fault_explains_later_cuda_error(judged, message, cause, aborted) -> None:
    lines = watchdog(1, UNSPECIFIED) if aborted else of(1, f"RuntimeError: {UNSPECIFIED}", *NOTES)
    verdict = judged(job_of(Case([message, *lines], "", [], "", code=-6 if aborted else 1)))
    assert (verdict.cause, verdict.ranks) == (cause, [1]), verdict.explanation
    assert message.strip() in verdict.explanation
    assert UNSPECIFIED in verdict.explanation


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (LOST, "ValueError: bad shard 7"),
        (ECC, f"RuntimeError: {ILLEGAL}"),
        (OF_A_PROGRAM, f"RuntimeError: {UNSPECIFIED}"),
    ],
)
def test_another_error_is_not_blamed_on_the_gpu(judged, message: str, error: str) -> None:
    """Contract: `dmesg` prints all messages since the node was booted, also those of earlier programs."""
    verdict = judged(job_of(Case([message, *of(1, error)], "", [], "")))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation


@pytest.mark.parametrize("message", [LOST, OF_A_PROGRAM])
def test_gpu_fault_in_log_of_other_rank_is_mentioned(judged, message: str) -> None:
    verdict = judged(job_of(Case([message, *of(1, PEER)], "", [], "")))
    assert (verdict.cause, verdict.ranks) == ("collective.failed", []), verdict.explanation
    assert (f"may be the reason: {LOST}" in verdict.explanation) == (message == LOST)


def test_a_gpu_that_nvidia_smi_cannot_find_is_lost(judged) -> None:
    line = "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error"
    verdict = judged(job_of(Case(["step 3", line], "", [], "")))
    assert (verdict.cause, verdict.ranks) == ("gpu.lost", [1]), verdict.explanation
