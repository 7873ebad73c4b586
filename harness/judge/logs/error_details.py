"""Complete a rank's last error with details from other lines of the log.

NCCL names the failed system call in a line below its exception, or only in its warnings. A failed assertion
in a CUDA kernel is printed before the exception. Some exceptions end with a colon, and the next lines contain
the reasons.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from harness.judge.logs.rank_errors import OF_A_RANK

Lines = Sequence[tuple[int, str]]
LINES = 4
"""Maximum number of lines from an exception to details that were logged after it."""
_LINES_BEFORE = 200
"""Maximum number of lines from details to the exception that was logged after them."""
_NCCL_DETAIL = re.compile(r"^(?:\[rank\d+\]: ?)?Last error:$")
"""Pattern for the line above NCCL's description of the problem. The exception itself contains only an error
code."""
_NCCL_ERROR = re.compile(r"NCCL error|nccl\w+Error: |unhandled (system|cuda) error", re.IGNORECASE)
_NCCL_WARNING = re.compile(r"\[(\d{1,4})\] (?:[\w/.]+:\d+ )?NCCL WARN (.+)")
"""Pattern for an NCCL warning. The number is the GPU's index within the pod."""
_ASSERTED = "device-side assert triggered"
_ASSERTION = re.compile(r"Assertion `[^`]{1,200}` failed")
_LISTED = re.compile(r"\d validation errors? for ")
"""Pattern for a Pydantic exception. Each reason takes up two lines below it."""
_REPEATED = re.compile(r"DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly")
"""Pattern for the exception that PyTorch raises when a DataLoader worker exits. It repeats an earlier
exception, which names the signal that ended the worker."""
_BOX = re.compile(r"^╭─+ (?!Traceback)[^─]{0,60}[Ee]rror ─")
"""Pattern for the border that a command-line parser, such as Typer or tyro, draws above its message."""
_WORKER_KILLED = re.compile(r"DataLoader worker \(pid \d+\) is killed by signal: ")


def unboxed(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the lines of a log, without the boxes that command-line parsers draw around their messages."""
    inside = False
    for number, text in lines:
        inside = bool(_BOX.match(text)) or (inside and text.startswith("│"))
        yield number, text.strip("│ ") if inside and text.startswith("│") else text


def complete(
    lines: Lines, error: tuple[str, int], is_noise: Callable[[str], bool], gpu: int | None
) -> tuple[str, int]:
    """Return (the error with its details, the number of the error's line).

    `is_noise` returns whether a line contains no information. `gpu` is the index of the rank's GPU within its
    pod, -1 if it is unknown, or None if all warnings in the log belong to the rank.
    """
    text, number = _before_repetition(lines, *error)
    detail = _below(lines, number) or _warned(lines, number, text, gpu) or _asserted(lines, number, text)
    if not detail and (text.endswith(":") or _LISTED.search(text)):
        detail = _next(lines, number, text, is_noise)
    return f"{text}{detail}", number


def _before_repetition(lines: Lines, text: str, number: int) -> tuple[str, int]:
    """Return the error that `text` repeats, if `text` is about a DataLoader worker, otherwise `text`.

    Only the earlier error names the signal that ended the worker.
    """
    if not _REPEATED.search(text):
        return text, number
    rank = OF_A_RANK.match(text)
    earlier = (
        (line.strip(), at)
        for at, line in reversed(lines)
        if at < number and _WORKER_KILLED.search(line) and _is_same(rank, line)
    )
    return next(earlier, (text, number))


def _is_same(rank: re.Match[str] | None, line: str) -> bool:
    other = OF_A_RANK.match(line)
    return (rank and rank[1]) == (other and other[1])


def _below(lines: Lines, number: int) -> str:
    """Return the detail that NCCL adds to the exception in line `number`, or ""."""
    after = [text for at, text in lines if number < at <= number + LINES]
    for header, detail in itertools.pairwise(after):
        if _NCCL_DETAIL.match(header):
            return f" Last error: {OF_A_RANK.sub('', detail).strip()}"
    return ""


def _warned(lines: Lines, number: int, text: str, gpu: int | None) -> str:
    """Return the last NCCL warnings before the NCCL exception in line `number`, or ""."""
    if not _NCCL_ERROR.search(text):
        return ""
    matches = [_NCCL_WARNING.search(line) for at, line in lines if number - _LINES_BEFORE <= at < number]
    warnings = [match[2].strip() for match in matches if match and gpu in (None, int(match[1]))]
    return f". NCCL warned: {'; '.join(dict.fromkeys(warnings[-2:]))}" if warnings else ""


def _asserted(lines: Lines, number: int, text: str) -> str:
    """Return the last assertion that failed in a CUDA kernel before the error in line `number`, or ""."""
    if _ASSERTED not in text:
        return ""
    matches = (_ASSERTION.search(line) for at, line in reversed(lines) if at < number)
    assertion = next(filter(None, matches), None)
    return f" ({assertion[0]})" if assertion else ""


def _next(lines: Lines, number: int, text: str, is_noise: Callable[[str], bool]) -> str:
    """Return the first two lines of the reasons below an error, or ""."""
    rank = OF_A_RANK.match(text)
    reasons: list[str] = []
    for at, line in lines:
        own = OF_A_RANK.sub("", line).strip()
        if number < at <= number + LINES and own:
            if is_noise(line) or not _is_same(rank, line) or len(reasons) == 2:
                break
            reasons.append(own)
    return "".join(f" {reason}" for reason in reasons)
