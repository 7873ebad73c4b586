"""Two things at once: both results, and an end of both when one fails."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from harness.core import processes
from harness.core.concurrency import AT_ONCE, in_background, run_all, within
from harness.core.errors import ToolError

FAILS = ["sh", "-c", "sleep 0.2; echo broken; exit 3"]
LONG = 60.0


def long() -> str:
    processes.run(["sleep", str(LONG)], timeout=LONG)
    return "it ran to its end"


def fails() -> None:
    processes.run(FAILS, timeout=LONG)


def test_both_results_are_available_after_the_block() -> None:
    with in_background(lambda: processes.run(["echo", "one"], timeout=LONG).stdout) as one:
        two = processes.run(["echo", "two"], timeout=LONG).stdout
    assert (one.result(), two) == ("one\n", "two\n")


def test_a_failure_beside_ends_the_block_and_is_told() -> None:
    start = time.monotonic()
    with pytest.raises(ToolError, match="broken"), in_background(fails):
        long()
    assert time.monotonic() - start < LONG / 2


def test_a_failure_of_the_block_ends_what_runs_beside() -> None:
    start = time.monotonic()
    with pytest.raises(ToolError, match="broken"), in_background(long):
        fails()
    assert time.monotonic() - start < LONG / 2


def test_failure_beside_is_told_when_block_had_ended() -> None:
    with pytest.raises(ToolError, match="broken"), in_background(fails):
        pass


def test_an_interruption_stays_one() -> None:
    """Ctrl-C in the block is not taken for a failure of what ran beside."""

    def interrupted() -> None:
        time.sleep(0.2)
        processes.interrupt_all("SIGINT")
        raise KeyboardInterrupt("SIGINT")

    with pytest.raises(KeyboardInterrupt, match="SIGINT"), in_background(long):
        interrupted()


def test_many_at_once_keep_their_order() -> None:
    """Contract: more of them than run at the same time, each result in its place."""
    numbers = range(3 * AT_ONCE)
    assert run_all(partial(int, str(number)) for number in numbers) == list(numbers)


def test_of_many_the_first_that_fails_is_told() -> None:
    """Contract: the order of the things decides which error is raised, whichever comes first."""

    def late() -> None:
        time.sleep(0.2)
        raise ToolError(["late"], 1, "first in order")

    with pytest.raises(ToolError, match="first in order"):
        run_all([late, partial(int, "no number")])


def test_what_is_late_is_left_behind() -> None:
    """Contract: a call that never ends costs the limit, and what the others returned is there."""
    end = threading.Event()

    def upper(word: str) -> str:
        if word == "silent":
            end.wait()
        return word.upper()

    found = within(1.0, upper, ["a", "silent", "b"])
    end.set()
    assert found == {"a": "A", "b": "B"}
