"""Recognise the log lines that a rank's container writes for the harness to read.

These lines are never shown to users.
"""

from __future__ import annotations

import re

from harness.core.secret_rules import PREFIX
from harness.workers.acceptance import emit
from harness.workers.ground_truth.truth_frames import EXIT_MARK, MARK, PROCESS_MARK
from harness.workers.netcheck import frames
from harness.workers.recorder import digest_lines

MARKS = (
    *(MARK, PROCESS_MARK, EXIT_MARK, frames.MARK, emit.MARK),
    *(digest_lines.LINE_MARK, digest_lines.REPORTED_MARK, digest_lines.SUMMARY_MARK),
)
"""The strings that mark log lines for the harness: lines with logged points, processes, a command's exit
code, netcheck diagnoses, acceptance test results, or an injected recorder's digests."""
_PREFIX = re.compile(rf"{PREFIX}\s*")


def is_own(line: str) -> bool:
    """Return whether a log line, or its last part, was written for the harness to read."""
    return "@" in line and any(mark in line for mark in MARKS)


def without_own(line: str) -> str | None:
    """Return a log line without the part that was written for the harness, or None if nothing remains.

    A line can start with other text if a program printed that text without a line ending. A prefix such as
    "[rank0]: " is ignored.
    """
    if not is_own(line):
        return line
    text = line[: min(at for at in map(line.find, MARKS) if at >= 0)]
    return None if _PREFIX.fullmatch(text) else text
