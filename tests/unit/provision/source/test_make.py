"""What people read while everything is built."""

from __future__ import annotations

import time

from harness.provision.source.make import REPORT_SECONDS, _Compiling


def test_progress_says_what_is_left_and_how_long() -> None:
    """By how long the packages so far took, and not at each package."""
    messages: list[str] = []
    begun = time.monotonic() - 600
    compiling = _Compiling(packages=100, progress=messages.append, compiled=19, begun=begun, reported=begun)
    compiling()
    assert messages == ["Go: 20 of 100 packages compiled, about 40 min left"]
    compiling()
    assert len(messages) == 1, f"at most every {REPORT_SECONDS:.0f} s"


def test_more_packages_than_were_counted_are_no_negative_time() -> None:
    messages: list[str] = []
    begun = time.monotonic() - 600
    _Compiling(packages=10, progress=messages.append, compiled=10, begun=begun, reported=begun)()
    assert messages == ["Go: 11 of 10 packages compiled, less than a minute left"]
