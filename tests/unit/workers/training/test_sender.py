"""Points are kept until they are acknowledged, and the training never waits longer than it may."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from harness.workers.training import sender
from harness.workers.training.sender import Point, Sender


class Kept:
    """A client that keeps points in memory, while it is `up`."""

    name = "Kept"

    def __init__(self, up: bool = True) -> None:
        self.up, self.taken, self.closed = threading.Event(), list[int](), list[bool]()
        if up:
            self.up.set()

    def connect(self) -> None:
        if not self.up.is_set():
            raise ConnectionError("nobody listens")

    def send(self, points: Sequence[Point]) -> tuple[Sequence[Point], str]:
        if not self.up.is_set():
            return points, "HTTP 503"
        self.taken += [point.number for point in points]
        return [], ""

    def close(self, ok: bool) -> None:
        self.closed.append(ok)


def point(number: int) -> Point:
    return Point(number, number, 1000 + number, {"loss": 0.5})


def seconds(wait: Sender, again: bool = False) -> tuple[bool, float]:
    """Whether all was acknowledged, and how long the wait took."""
    began = time.monotonic()
    return wait.wait(again), time.monotonic() - began


def test_every_point_is_sent_once_in_its_order() -> None:
    """Contract: also what is put while others are being sent."""
    client = Kept()
    sending = Sender(client, [point(0)], print, 10)
    for number in range(1, 200):
        sending.put(point(number))
    assert sending.wait()
    assert client.taken == list(range(200))
    assert sending.unsent() == []
    sending.close(ok=True)
    assert client.closed == [True]


def test_one_limit_for_all_waits_in_a_row() -> None:
    """Contract: after the limit no wait takes time, until something is acknowledged; `again` waits anew."""
    client, messages = Kept(up=False), list[str]()
    sending = Sender(client, [], messages.append, 0.4)
    sending.put(point(0))
    done, first = seconds(sending)
    assert not done
    assert first > 0.3
    assert sum(seconds(sending)[1] for _ in range(100)) < 100 * 0.3
    assert seconds(sending, again=True)[1] > 0.3
    assert [one.number for one in sending.unsent()] == [0]
    assert messages == [
        "Kept accepts no points (ConnectionError: nobody listens): they are kept and sent later"
    ]
    client.up.set()
    while sending.unsent():
        time.sleep(0.01)
    client.up.clear()
    sending.put(point(1))
    assert seconds(sending)[1] > 0.3
    assert any(text.startswith("Kept accepts points again after") for text in messages)
    sending.close(ok=False)


def test_a_run_with_points_left_does_not_end_well() -> None:
    """Contract: the client is told that it is not over, and the close does not wait for the tracker."""
    client = Kept()
    sending = Sender(client, [], print, 120)
    assert sending.wait()
    time.sleep(2 * sender.PAUSE)
    client.up.clear()
    sending.put(point(0))
    time.sleep(2 * sender.PAUSE)
    assert sending.trouble() == "HTTP 503"
    began = time.monotonic()
    sending.close(ok=True)
    assert time.monotonic() - began < 60
    assert client.closed == [False]
