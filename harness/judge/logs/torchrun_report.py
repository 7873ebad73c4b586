"""Read torchrun's failure report. If the ranks' output goes to files, the pod's log contains nothing else.

torchrun lists each failed rank with its exit code and, if the rank's function has the decorator `record`,
with its traceback (torch/distributed/elastic/multiprocessing/errors). With `--redirects` or
`--local-ranks-filter`, the log contains the traceback nowhere else. torchrun names the rank with the earliest
failure as the root cause, even if that rank failed because it had lost a peer.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Lines = Sequence[tuple[int, str]]
_OF_ITSELF = {-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE}
"""Exit codes of ranks that neither torchrun nor NCCL's watchdog ended. torchrun sends SIGTERM, and the
watchdog sends SIGABRT."""
_BEGIN = re.compile(r"^Failures:$")
_ENTRY = re.compile(r"^\[\d+\]:$")
_END = re.compile(r"^={20,}$|^-{20,}$|^Root Cause|^===== ")
_FIELD = re.compile(r"^  (\w+) *: ?(.*)$")


@dataclass
class Failure:
    """A failed rank in torchrun's report. `error` is the last error in its traceback, or ""."""

    rank: int | None = None
    exit_code: int | None = None
    error: str = ""
    number: int = 0
    """The number of the line with the error."""
    lines: list[tuple[int, str]] = field(default_factory=list)
    """The lines of the traceback, without the report's indentation."""


def first_own(
    lines: Lines, is_error: Callable[[str], bool], is_of_a_peer: Callable[[str], bool]
) -> Failure | None:
    """Return the last report's first failure that was not caused by another rank, or None.

    If other ranks may have caused all failures, return the root cause, provided that it has a traceback.
    """
    failures = _failures(lines, is_error)
    own = (
        each
        for each in failures
        if (each.error and not is_of_a_peer(each.error)) or each.exit_code in _OF_ITSELF
    )
    return next(own, None) or next((each for each in failures[:1] if each.error), None)


def _failures(lines: Lines, is_error: Callable[[str], bool]) -> list[Failure]:
    """Return the failures in the last report, with the root cause first."""
    begins = [position for position, (_, text) in enumerate(lines) if _BEGIN.match(text)]
    failures: list[Failure] = []
    inside = in_traceback = False
    for number, text in lines[begins[-1] + 1 :] if begins else []:
        if _ENTRY.match(text):
            failures.append(Failure())
            inside, in_traceback = True, False
        elif _END.match(text):
            inside = False
        elif inside:
            match = None if in_traceback else _FIELD.match(text)
            if match is not None:
                in_traceback = match[1] == "traceback"
                _set(failures[-1], match[1], match[2])
            elif in_traceback:
                line = text.removeprefix("  ")
                failures[-1].lines.append((number, line))
                if is_error(line):
                    failures[-1].error, failures[-1].number = line.strip(), number
    return [*failures[-1:], *failures[:-1]]


def _set(failure: Failure, name: str, value: str) -> None:
    match = re.match(r"-?\d{1,9}\b", value)
    if match is not None and name == "rank":
        failure.rank = int(match[0])
    elif match is not None and name == "exitcode":
        failure.exit_code = int(match[0])
