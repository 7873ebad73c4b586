"""Find the signal that ended a process, in the last lines of the launcher that had started the process."""

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
_LINES = 40
"""Number of lines at the end of a log that are searched."""


def reported(lines: Lines) -> int | None:
    """Return the negative number of the signal that ended a process, according to its launcher, or None.

    An exception with a rank's label is that of the rank, which may have started another program.
    """
    texts = (text for _, text in reversed(lines[-_LINES:]) if not rank_errors.OF_A_RANK.match(text))
    match = next(filter(None, map(_SIGNALLED.search, texts)), None)
    if match is None:
        return None
    name = match[4]
    number = getattr(signal, name, 0) if name else int(next(filter(None, match.groups())))
    return -number or None
