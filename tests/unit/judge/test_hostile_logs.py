"""Logs whose lines contain almost anything: very long lines, long numbers, and attempts that are repeated."""

from __future__ import annotations

import json
import time

import pytest
from bundles import at
from ended_pods import failing, says

from harness.judge.logs import error_patterns, torchrun_report

RETRY = (
    "job-1:99:120 [0] NCCL INFO socketPollConnect: connect to 10.0.0.5<42415> returned {}, retrying (1/34) "
)
FAILURES = ["Failures:", "[1]:", "  rank      : {}", "  exitcode  : {} (pid: 7)", "Root Cause", "[0]:"]


@pytest.mark.parametrize(
    "part",
    [
        *("Error", "failed ", "TCPStore", "connectFullMesh failed with ", "DataLoader worker (pid 1) "),
        *("socketStartConnect: connect to x ", "unable to write ", "Error [Errno ", "[1] NCCL WARN ", "1"),
    ],
)
@pytest.mark.parametrize("ranks", [1, 8])
def test_long_lines_are_read_in_time(part: str, ranks: int) -> None:
    """Contract: a line of 1 MB does not take minutes, whatever it contains."""
    line = part * (1_000_000 // len(part))
    start = time.perf_counter()
    for prefix in ("", "[rank1]: ", "[rank1]: RuntimeError: "):
        error_patterns.read([(1, f"{prefix}{line}"), (2, "RuntimeError: boom:"), (3, line)], "log", ranks)
        error_patterns.last_line([(1, f"{prefix}{line}")])
    lines = error_patterns.of_last_attempt([(1, line)])
    assert not any(error_patterns.is_error(text) for _, text in lines)
    assert time.perf_counter() - start < 5


def test_the_end_of_a_long_line_counts() -> None:
    error = f"OSError: {'x' * 100_000} [Errno 28] No space left on device"
    clues = error_patterns.read([(1, error)], "log")
    assert clues.cause == "rank.write_failed"
    assert clues.last.startswith("OSError: xxx")


def test_number_with_thousands_of_digits_is_no_rank() -> None:
    digits = "9" * 5000
    lines = list(enumerate([line.format(digits) for line in FAILURES], 1))
    assert torchrun_report.first_own(lines, lambda _: False, lambda _: False) is None


@pytest.mark.parametrize("error", ["Connection refused", "Connection timed out", "No route to host"])
def test_retried_nccl_connection_is_not_cause(judged, error: str) -> None:
    """Contract: NCCL_DEBUG=INFO shows such attempts whenever a rank starts later than its peers."""
    job = failing()
    job.truth = {}
    says(job, 1, [RETRY.format(error), "step 1 loss 0.5", "ValueError: bad shard 7"])
    job.ended(1, 12, 1, message=json.dumps({"exit": 1}))
    job.logs[job.pod_name(0)] = [f"{at(13, True)} RuntimeError: Connection closed by peer [10.0.0.6]:1"]
    job.ended(0, 14, 1, message=json.dumps({"exit": 1}))
    job.jobset(15, "Failed")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    assert "bad shard 7" in verdict.explanation


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (
            "returned Connection timed out, exceeded error retry count after 35 attempts",
            "rendezvous.unreachable",
        ),
        ("failed : No route to host", "rendezvous.unreachable"),
    ],
)
def test_the_last_attempt_of_nccl_counts(end: str, cause: str) -> None:
    text = f"job-1:99:120 [0] NCCL WARN socketPollConnect: connect to 10.0.0.5<42415> {end}"
    assert error_patterns.read([(1, text)], "log").cause == cause
