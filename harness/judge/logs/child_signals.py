"""Find out how a launched process ended, using the last lines of its launcher's log."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from harness.judge.logs import rank_errors

Lines = Sequence[tuple[int, str]]
_SIGNALLED = re.compile(
    r"exits with return code = -(\d{1,2})\b|died with <Signals\.SIG\w+: (\d{1,2})>"
    r"|Child process with PID \d+ terminated with code -(\d{1,2})\b|terminated with signal (SIG[A-Z]+)"
)
"""Pattern for the line in which DeepSpeed, accelerate, Lightning or torch.multiprocessing reports the signal
that ended a process."""
_DEEPSPEED = re.compile(r"\[launch\.py:\d+:sigkill_handler\] .* exits with return code = (-?\d{1,3})\b")
_AFTER_DEEPSPEED = re.compile(r"pdsh@\S+: .* exited with exit code \d+|===== KONDUKTOR: ")
"""Pattern for lines that pdsh and konduktor print after DeepSpeed's last line."""
_LINES = 40
"""Number of lines at the end of a log that are searched."""


def reported(lines: Lines) -> int | None:
    """Return the negative number of the signal that ended a launched process, or None.

    Lines with a rank's label are ignored, because they may be about another program that the rank started.
    """
    texts = (text for _, text in reversed(lines[-_LINES:]) if not rank_errors.OF_A_RANK.match(text))
    match = next(filter(None, map(_SIGNALLED.search, texts)), None)
    if match is None:
        return None
    name = match[4]
    number = getattr(signal, name, 0) if name else int(next(filter(None, match.groups())))
    return -number or None


def of_deepspeed(lines: Lines) -> int | None:
    """Return the exit code of a failed process that DeepSpeed reports in the last line of a log, or None.

    DeepSpeed uses pdsh to start its launcher on other hosts, and pdsh may exit with 0 although a process
    failed.
    """
    texts = [text for _, text in lines if text.strip() and not _AFTER_DEEPSPEED.search(text)]
    match = _DEEPSPEED.search(texts[-1]) if texts else None
    return int(match[1]) if match else None
