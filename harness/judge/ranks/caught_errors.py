"""Find pods that exited with 0 although their last output is an exception that usually ends a training run.

A program can catch its own exception, print it and exit with 0 (skypilot#4421), in one rank or in all of
them. It is then unknown whether its work was complete. Programs also print tracebacks of errors that they
handle, or that occur while Python exits. Therefore, only errors of CUDA, of collective operations and of
launchers count, and only if nothing was printed after them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.judge.case import Case, names
from harness.judge.finding import Finding, not_passed
from harness.judge.logs import error_patterns, program_lines

_LINES = 200
"""Number of lines at the end of a log that are searched."""
_FATAL = re.compile(
    r"Dist(Backend|Network|Store|)Error: |CUDA error: |CUDA out of memory|OutOfMemoryError: |NCCL error"
    r"|Connection closed by peer|ray\.exceptions\.|TrainingFailedError: |ChildFailedError"
    r"|CalledProcessError: Command .* (returned non-zero exit status|died with )"
)
_OF_HOROVOD = re.compile(r"Horovod background loop uncaught exception: ")
"""Pattern for a message without a traceback, after which the program can end with 0 (horovod#1994)."""
_OF_NCCL = re.compile(r"^(\[rank\d+\]: ?)?(nccl\w+: |Last error:)")
"""Pattern for lines that PyTorch adds to an error of NCCL."""
_TRACEBACK = re.compile(r"^(\[rank\d+\]: ?)?Traceback \(most recent call last\):$")
_NOT_OF_PROGRAM = re.compile(
    r"^(Exception ignored in|Exception in thread|--- Logging error|Error in atexit)|\bWARN(ING)?\b"
    r"|Error waiting on exit barrier|torch[./]distributed[./]elastic"
)
"""Pattern for the line before a traceback that does not end the program. Python, a logger or torchrun prints
this line. For example, torchrun prints it if the exit barrier fails because the torchrun with the store has
already exited."""


@dataclass(frozen=True)
class _CaughtError:
    """The exception at the end of a pod's log.

    `ranks` contains the rank that the line names, or else all ranks of the pod.
    """

    text: str
    ranks: list[int]
    ref: str


def check(case: Case) -> Finding | None:
    """Return the `rank-exit` finding if the log of a pod ends with an exception, or None.

    The caller makes sure that all pods exited with 0.
    """
    errors = [error for index in sorted(case.pods) if (error := _at_end(case, index)) is not None]
    if not errors:
        return None
    ranks = [rank for error in errors for rank in error.ranks]
    subject = "the last line in the log of" if len(errors) == 1 else "the last lines in the logs of"
    verb = "is an exception" if len(errors) == 1 else "are exceptions"
    text = f"{subject} {names(ranks)} {verb}, although the exit code is 0"
    details = [f"{names(error.ranks)}: {error.text}" for error in errors]
    refs = [error.ref for error in errors][:8]
    return not_passed("rank-exit", "rank.stopped_early", text, details=details, ranks=ranks, evidence=refs)


def _at_end(case: Case, index: int) -> _CaughtError | None:
    """Return the exception with which the log of a node's pod ends, or None."""
    log = case.bundle.log(case.pods[index].name, case.launch.container)
    lines = program_lines.plain(case.bundle.tail(log, _LINES))
    while lines and any(pattern.search(lines[-1][1]) for pattern in (error_patterns.NOISE, _OF_NCCL)):
        lines.pop()
    if not lines:
        return None
    number, text = lines[-1]
    is_fatal = error_patterns.is_error(text) and _FATAL.search(text) is not None
    if not (is_fatal or _OF_HOROVOD.search(text)):
        return None
    begins = [at for at, (_, line) in enumerate(lines) if _TRACEBACK.match(line)]
    if is_fatal and (not begins or (begins[-1] and _NOT_OF_PROGRAM.search(lines[begins[-1] - 1][1]))):
        return None
    label = re.match(r"\[rank(\d+)\]", text)
    of_pod = case.ranks_of(index)
    ranks = [int(label[1])] if label and int(label[1]) in of_pod else of_pod
    return _CaughtError(text.strip()[:300], ranks, f"{log}:{number}")
