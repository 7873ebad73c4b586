"""Log lines that ranks write for the harness. They are never shown to users."""

from __future__ import annotations

from harness.workers.acceptance import emit
from harness.workers.netcheck import frames
from harness.workers.truth_frames import EXIT_MARK, MARK, PROCESS_MARK

MARKS = (MARK, PROCESS_MARK, EXIT_MARK, frames.MARK, emit.MARK)
"""Logged points, processes, the exit code of a held command, diagnoses of netcheck, acceptance tests."""


def is_own(line: str) -> bool:
    """Return whether a line of a log is the harness's own."""
    return "@" in line and any(mark in line for mark in MARKS)
