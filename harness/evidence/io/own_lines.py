"""Recognise the log lines that ranks write for the harness. These lines are never shown to users."""

from __future__ import annotations

from harness.workers.acceptance import emit
from harness.workers.netcheck import frames
from harness.workers.truth_frames import EXIT_MARK, MARK, PROCESS_MARK

MARKS = (MARK, PROCESS_MARK, EXIT_MARK, frames.MARK, emit.MARK)
"""The marks of lines with logged points, processes, a command's exit code, netcheck's diagnoses, and results
of acceptance tests."""


def is_own(line: str) -> bool:
    """Return whether a log line was written for the harness."""
    return "@" in line and any(mark in line for mark in MARKS)
