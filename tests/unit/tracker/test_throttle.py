"""throttle.py: failed logins are limited, in bounded memory, and only for as long as they go on."""

from __future__ import annotations

import pytest

from harness.tracker.pages import throttle
from harness.tracker.pages.throttle import Throttle


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def logins(clock: Clock) -> Throttle:
    return Throttle(clock)


def failures(logins: Throttle, address: str, most: int = 1000) -> int:
    """Fail until the throttle refuses an attempt. Return how often."""
    for number in range(most):
        if logins.wait(address):
            return number
        logins.failed(address)
    return most


def test_address_has_ten_attempts_then_one_per_interval(logins: Throttle, clock: Clock) -> None:
    assert failures(logins, "10.0.0.1") == 10
    assert logins.wait("10.0.0.1") == pytest.approx(10)
    assert logins.wait("10.0.0.2") == 0
    clock.now += 10.01
    assert failures(logins, "10.0.0.1") == 1
    clock.now += 3600
    assert failures(logins, "10.0.0.1") == 10


def test_all_addresses_together_have_one_attempt_a_second(logins: Throttle, clock: Clock) -> None:
    assert sum(failures(logins, f"10.0.0.{host}") for host in range(50)) == 100
    assert 0 < logins.wait("192.0.2.1") <= 1
    clock.now += 60
    assert sum(failures(logins, f"10.0.1.{host}") for host in range(50)) == 60


def test_attempt_that_was_refused_does_not_prolong_wait(logins: Throttle, clock: Clock) -> None:
    """Contract: who keeps asking does not lock out others of the same address for longer."""
    failures(logins, "10.0.0.1")
    for _ in range(1000):
        assert logins.wait("10.0.0.1") > 0
    clock.now += 10.01
    assert logins.wait("10.0.0.1") == 0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("", "10.0.0.1", False),
    ],
)
def test_addresses_of_one_host_count_as_one(logins: Throttle, one: str, other: str, same: bool) -> None:
    failures(logins, one)
    assert (logins.wait(other) > 0) == same


def test_the_memory_is_bounded(logins: Throttle, clock: Clock) -> None:
    for number in range(3 * throttle.ADDRESSES):
        clock.now += 1
        logins.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(logins._buckets) == throttle.ADDRESSES
