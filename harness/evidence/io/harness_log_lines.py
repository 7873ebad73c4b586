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
"""The strings that mark log lines for the harness. Such a line contains logged points, process events, a
command's exit code, netcheck diagnoses, acceptance test results or an injected recorder's digests."""
_PREFIX = re.compile(rf"{PREFIX}\s*")
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[0-9.:Z+-]*")


def split_time(line: str) -> tuple[str, str]:
    """Return the kubelet's timestamp at the beginning of a log line, and the text after it.

    The timestamp is "" if the line has none, as with a message that the kubelet itself wrote.
    """
    stamp, _, text = line.partition(" ")
    return (stamp, text) if _STAMP.fullmatch(stamp) else ("", line)


def is_own(line: str) -> bool:
    """Return whether a log line, or its last part, was written for the harness to read."""
    return "@" in line and any(mark in line for mark in MARKS)


def without_own(line: str) -> str | None:
    """Return a log line without the part that was written for the harness, or None if nothing remains.

    A line can start with other text if a program printed that text without a line ending. A prefix such as
    "[rank0]: " does not count as remaining text.
    """
    if not is_own(line):
        return line
    text = line[: min(at for at in map(line.find, MARKS) if at >= 0)]
    return None if _PREFIX.fullmatch(text) else text
