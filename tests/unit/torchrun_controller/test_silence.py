"""A job whose ranks write nothing: said after QUIET, taken back when one writes, and asked for seldom."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from torchrun_objects import pod

from harness.torchrun_controller.api.condition_type import stamp
from harness.torchrun_controller.decide.silence import QUIET, READ_INTERVAL, Silence, sentence

START = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)


class Logs:
    """The last line of each pod, and how often it was asked for."""

    def __init__(self) -> None:
        self.last: dict[str, datetime] = {}
        self.asked = 0

    def __call__(self, namespace: str, name: str) -> datetime | None:
        assert namespace == "team"
        self.asked += 1
        return self.last.get(name)


def running(index: int, started: datetime = START) -> dict[str, Any]:
    state = [{"name": "trainer", "state": {"running": {"startedAt": stamp(started)}}}]
    made = pod(index, "Running", containerStatuses=state)
    made["metadata"]["namespace"] = "team"
    return made


def test_nothing_written_is_said_and_taken_back() -> None:
    logs = Logs()
    silence, pods = Silence(logs), [running(0), running(1)]
    assert silence.since("a", pods, START + SECOND) == (None, START + QUIET)
    assert logs.asked == 0
    since, again = silence.since("a", pods, START + QUIET)
    assert (since, again) == (START, START + QUIET + READ_INTERVAL)
    assert "2026-11-23T12:00:00Z (2/2 ready)" in sentence(START, "2/2 ready")
    assert silence.since("a", pods, START + QUIET + SECOND)[0] == START
    assert logs.asked == 2
    logs.last["demo-node-0-1-x0"] = START + QUIET + READ_INTERVAL
    assert silence.since("a", pods, START + QUIET + READ_INTERVAL)[0] is None
    assert silence.since("b", pods, START + 3 * QUIET)[0] == START + QUIET + READ_INTERVAL


def test_one_that_waits_to_start_is_not_silent() -> None:
    waiting = pod(1, "Pending")
    assert Silence(Logs()).since("a", [running(0), waiting], START + 9 * QUIET)[0] is None
    assert Silence(Logs()).since("a", [], START)[0] is None
    later = running(1, START + 2 * QUIET)
    assert Silence(Logs()).since("a", [running(0), later], START + 2 * QUIET + SECOND)[0] is None


@given(writes=st.lists(st.integers(1, 120), min_size=1, max_size=60), looks=st.integers(1, 60))
def test_who_writes_is_never_called_silent(writes: list[int], looks: int) -> None:
    """Contract: whenever it is looked at. Its log is asked once in QUIET, less the age of its last line."""
    logs = Logs()
    silence, now = Silence(logs), START
    for step in writes:
        now += timedelta(seconds=step)
        logs.last["demo-node-0-0-x0"] = now
        for look in range(0, step, looks):
            assert silence.since("a", [running(0), running(1)], now + look * SECOND)[0] is None
    ended = now + timedelta(seconds=step)
    assert logs.asked <= (ended - START) / (QUIET - timedelta(seconds=120)) + 1
