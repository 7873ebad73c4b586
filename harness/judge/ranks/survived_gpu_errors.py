"""Find errors after which the results of a GPU cannot be trusted, in the logs of ranks that exited with 0.

A program can catch such an error, print it in one line and continue. Three kinds of errors count:

- Errors that destroy the CUDA context of a process. CUDA returns them again for each later operation of the
  same process (the documentation of cudaError calls this "inconsistent state"), so later values do not come
  from the GPU, or are wrong.
- Collective operations that did not complete. PyTorch itself warns that later operations might use corrupted
  data. It usually ends the process, but not with TORCH_NCCL_ASYNC_ERROR_HANDLING=0 (pytorch#97191).
- Errors about a GPU that cannot be used, or whose memory is full. Programs handle these with another device
  or a smaller batch, so they count only if the rank logged no point after the error.

Errors from an earlier process of the rank, or from a process that tries kernels, do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.core.clock import seconds
from harness.judge.case import Case, names
from harness.judge.finding import Finding, not_passed
from harness.judge.logs import known_errors, launcher_reports, program_lines
from harness.judge.points.ground_truth import Truth
from harness.judge.ranks import gpu_use, launcher_failures

_WORDS = (b"rror", b"RROR", b"fail", b"arning", b"xception", b"atchdog caught", b"corrupted/incomplete data")
_LIBRARIES = (b"CUDA", b"uda", b"HIP", b"hipError", b"NCCL")
"""Each line that matches a pattern below contains one of _WORDS and one of _LIBRARIES. They serve as a fast
filter for the lines of a log."""
_OF_THE_CONTEXT = re.compile(
    r"(CUDA|[Cc]uda|HIP)[^\n]{0,120}?\b("
    r"an illegal (memory access|instruction) was encountered|device-side assert triggered"
    r"|unspecified launch (failure|error)|misaligned address|hardware stack error|invalid program counter"
    r"|operation not supported on (global|shared)(/shared)? address space"
    r"|the launch timed out and was terminated|uncorrectable (ECC|NVLink) error"
    r"|GPU requires reset|GPU is lost)"
    r"|\b(cuda|hip)Error(IllegalAddress|Assert|LaunchFailure|LaunchTimeout|MisalignedAddress"
    r"|IllegalInstruction|HardwareStackError|InvalidPc|InvalidAddressSpace|ECCUncorrectable)\b"
    r"|\bCUDA_ERROR_(ILLEGAL_ADDRESS|ASSERT|LAUNCH_FAILED|LAUNCH_TIMEOUT|MISALIGNED_ADDRESS"
    r"|ILLEGAL_INSTRUCTION|HARDWARE_STACK_ERROR|INVALID_PC|INVALID_ADDRESS_SPACE|ECC_UNCORRECTABLE)\b"
    r"|\b(CUDA|[Cc]uda)( kernel)? (error|fail(ed|ure)) ?[:(]? ?(code )?(214|220|700|702|71[0-9])\b"
)
"""Pattern for errors that destroy the context, as text, name or number (cuda.h, driver_types.h)."""
_OF_A_COLLECTIVE = re.compile(
    r"Watchdog caught collective operation timeout: |GPU operations might run on corrupted/incomplete data"
)
_UNUSABLE = re.compile(
    r"\b(CUDA|HIP) error: (no kernel image is available|invalid device function|invalid device ordinal"
    r"|all CUDA-capable devices are busy or unavailable|the provided PTX was compiled|initialization error"
    r"|no CUDA-capable device is detected|unknown error|system not yet initialized)"
    # Out-of-memory errors are often handled, so they count only if they are logged as errors (VIAME#146).
    r"|(\b(ERROR|CRITICAL|FATAL)\b|\[error\]|\b[Ee]xception [Cc]aught)[^\n]{0,300}?\bCUDA out of memory"
)
_NOT_AN_ERROR = re.compile(
    r"(?i:\b(if you (see|get|encounter)|in case of|to avoid|avoids?|prevents?|workaround"
    r"|(may|might|can|could) (cause|lead to|result in|raise))\b)"
)
"""Pattern for lines that contain the text of an error that did not occur."""
_OF_A_CHILD = re.compile(r"(?i:benchmark choice|autotun|\bin (a |the )?subprocess)")
"""Pattern for lines about child processes, in which PyTorch's compiler tries kernels."""
_MAX_CHARACTERS = 300
_MAX_SEARCHED = 2000
"""Maximum number of bytes that are searched at the beginning and at the end of a line."""
_MAX_LINES = 1000
"""Maximum number of matching lines that are read. A program can print one in each step."""
_SLACK_SECONDS = 0.05
"""Tolerance, in seconds, for comparisons of the times of log lines with the times of points and processes."""
_CONTEXT_ADVICE = (
    "let this error end the rank with a nonzero exit code, because its process cannot use the GPU any more; "
    "to find the operation, set CUDA_LAUNCH_BLOCKING=1"
)
_COLLECTIVE_ADVICE = (
    "let a timeout end the rank: remove TORCH_NCCL_ASYNC_ERROR_HANDLING=0 if it is set, and find out which "
    "rank did not take part"
)


@dataclass(frozen=True)
class _Error:
    """An error in a log, with the time at which it was logged and the ranks that may have logged it."""

    text: str
    at: float | None
    ref: str
    of_a_collective: bool
    ranks: list[int]
    rank: int | None
    """The rank in the line's label, or None."""


def check(case: Case) -> Finding | None:
    """Return the `rank-exit` finding if a log shows that a rank continued after such an error, or None.

    The caller makes sure that all pods exited with 0. Only errors of the first two kinds count.
    """
    errors = [
        error
        for log, ranks in _logs(case)
        if (error := next(_errors(case, log, ranks, _OF_THE_CONTEXT, _OF_A_COLLECTIVE), None)) is not None
    ]
    if not errors:
        return None
    ranks = sorted({rank for error in errors for rank in error.ranks})
    lost = [error for error in errors if not error.of_a_collective]
    first = (lost or errors)[0]
    reason = (
        "the process that logged this error could not use its GPU any more"
        if lost
        else "a collective operation did not complete, so the ranks may have computed with wrong data"
    )
    text = f"{_subject(errors, ranks)} ended with exit code 0 after a GPU error: {reason}"
    return not_passed(
        "rank-exit",
        "rank.stopped_early",
        text,
        details=_quotes([first, *(error for error in errors if error is not first)]),
        ranks=ranks,
        evidence=[error.ref for error in errors][:8],
        advice=_CONTEXT_ADVICE if lost else _COLLECTIVE_ADVICE,
    )


def without_gpu(case: Case, truths: Sequence[Truth]) -> Finding | None:
    """Return the `ranks-logged` finding if a rank logged no point after an error about its GPU, or None.

    The caller makes sure that all pods exited with 0. The rank may have stopped its work because of the error
    (ShapeWorks#2621).
    """
    last_ms = {
        truth.rank: max((attempt.last_ms or 0 for attempt in truth.attempts), default=0) for truth in truths
    }
    errors = [
        error
        for log, ranks in _logs(case)
        for error in list(_errors(case, log, ranks, _UNUSABLE))[-1:]
        if error.at is not None
        and all(0 < last_ms.get(rank, 0) <= (error.at + _SLACK_SECONDS) * 1000 for rank in error.ranks)
    ]
    if not errors:
        return None
    ranks = sorted({rank for error in errors for rank in error.ranks})
    text = f"{_subject(errors, ranks)} ended with exit code 0, but logged no point after a GPU error"
    return not_passed(
        "ranks-logged",
        "rank.stopped_early",
        text,
        details=_quotes(errors),
        ranks=ranks,
        evidence=[error.ref for error in errors][:8],
        advice=known_errors.advice(errors[0].text),
    )


def _subject(errors: Sequence[_Error], ranks: list[int]) -> str:
    is_certain = all(error.rank is not None or len(error.ranks) == 1 for error in errors)
    return names(ranks) if is_certain else f"at least one of {names(ranks)}"


def _quotes(errors: Sequence[_Error]) -> list[str]:
    return [f"{names(error.ranks)} logged: {error.text}" for error in errors]


def _logs(case: Case) -> Iterator[tuple[str, list[int]]]:
    """Yield the logs of the ranks, each with the ranks that write to it."""
    for index in sorted(case.pods):
        yield case.bundle.log(case.pods[index].name, case.launch.container), case.ranks_of(index)
    for pod, container in launcher_failures.launcher_containers(case):
        yield case.bundle.log(pod, container), list(case.ranks)


def _errors(case: Case, log: str, ranks: list[int], *patterns: re.Pattern[str]) -> Iterator[_Error]:
    """Yield the errors in the last attempt in a log that match one of the patterns, oldest first."""
    lines = _lines(case, log, patterns)
    times = {number: seconds(text.partition(" ")[0]) for number, text in lines}
    plain, processes = program_lines.with_processes(lines)
    began = _process_starts(case, ranks)
    for number, text in plain:
        if not any(pattern.search(text) for pattern in patterns):
            continue
        label = re.match(r"\[rank(\d{1,9})\]", text)
        rank = int(label[1]) if label else gpu_use.rank_of_process(processes.get(number, ""), ranks)
        own = [rank] if rank is not None and rank in ranks else ranks
        at = times[number]
        if at is not None and own and all(began.get(one, 0.0) > at + _SLACK_SECONDS for one in own):
            continue
        of_a_collective = _OF_A_COLLECTIVE.search(text) is not None
        is_certain = rank if own != ranks or len(ranks) == 1 else None
        yield _Error(text.strip()[:_MAX_CHARACTERS], at, f"{log}:{number}", of_a_collective, own, is_certain)


def _lines(case: Case, log: str, patterns: Sequence[re.Pattern[str]]) -> list[tuple[int, str]]:
    """Return the lines of the last attempt in a log that match one of the patterns."""
    lines: list[tuple[int, str]] = []
    before = b""
    for number, line in enumerate(case.bundle.log_lines(log), 1):
        if launcher_reports.RANK_FAILED in line:
            lines = []
        elif (
            any(word in line for word in _WORDS)
            and any(library in line for library in _LIBRARIES)
            and len(lines) < _MAX_LINES
        ):
            ends = line if len(line) <= 2 * _MAX_SEARCHED else line[:_MAX_SEARCHED] + line[-_MAX_SEARCHED:]
            text = ends.decode(errors="replace").rstrip()
            match = next(filter(None, (pattern.search(text) for pattern in patterns)), None)
            context = before[:_MAX_SEARCHED].decode(errors="replace") + text
            if match and not (_NOT_AN_ERROR.search(text) or _OF_A_CHILD.search(context)):
                lines.append((number, text))
        before = line
    return lines


def _process_starts(case: Case, ranks: list[int]) -> dict[int, float]:
    """Map each rank to the start time of its last recorded process, in seconds since the epoch."""
    return {
        life.rank: max(process.began for process in life.processes) / 1000
        for of_pod in case.processes.values()
        for life in of_pod.lives
        if life.processes and life.rank in ranks
    }
