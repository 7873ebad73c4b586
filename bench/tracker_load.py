"""The load of bench/tracker.py: senders with one connection and one request at a time each, in one thread."""

from __future__ import annotations

import re
import selectors
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field


@dataclass
class Sender:
    """One connection: sends a request, waits for its answer, sends the next one when it is due."""

    there: socket.socket
    requests: list[bytes]
    sent: int = 0
    due: float = 0.0
    began: float = 0.0
    left: memoryview | None = None
    answer: bytearray = field(default_factory=bytearray)
    refused: bool = False
    gone: bool = False
    """Whether the server closed the connection."""


@dataclass
class Load:
    """What came of a load. Seconds of each request are from when it was due, so waiting counts."""

    points: int
    seconds: float
    latencies: list[float]
    refused: int = 0

    def figures(self) -> dict[str, float]:
        refused = {"refused": self.refused} if self.refused else {}
        rate = round(self.points / self.seconds)
        return {"points_per_second": rate, **percentiles(self.latencies), **refused}


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Return p50 and p99 in milliseconds, and how many there were."""
    ordered = sorted(seconds)
    at = {
        name: ordered[int((len(ordered) - 1) * part)] * 1000 for name, part in (("p50", 0.5), ("p99", 0.99))
    }
    return {**{name: round(value, 1) for name, value in at.items()}, "requests": len(ordered)}


def load(port: int, bodies: list[list[bytes]], size: int, seconds: float, rate: float | None = None) -> Load:
    """Send for some seconds, as fast as answers come, or so many points per second over all senders."""
    chosen, senders = selectors.DefaultSelector(), []
    for requests in bodies:
        senders.append(Sender(_connected(port), requests))
        chosen.register(senders[-1].there, selectors.EVENT_READ, senders[-1])
    every = size * len(senders) / rate if rate else 0.0
    start = time.perf_counter()
    for at, sender in enumerate(senders):
        sender.due = start + every * at / len(senders)
    waiting, busy, latencies, refused = list(senders), 0, list[float](), 0
    end = start + seconds
    while True:
        now = time.perf_counter()
        if now < end:
            for sender in [one for one in waiting if one.due <= now]:
                waiting.remove(sender)
                sender.began = sender.due if rate else now
                sender.left = memoryview(sender.requests[sender.sent % len(sender.requests)])
                sender.sent += 1
                busy += 1
                _send(chosen, sender)
        elif not busy:
            break
        pause = max(0.0, min((one.due for one in waiting), default=end) - now) if now < end else 1.0
        for key, mask in chosen.select(min(pause, 0.05) if waiting else 1.0):
            one: Sender = key.data
            if mask & selectors.EVENT_WRITE:
                _send(chosen, one)
            if mask & selectors.EVENT_READ and _answered(one):
                done = time.perf_counter()
                latencies.append(done - one.began)
                refused += one.refused
                if one.gone:
                    chosen.unregister(one.there)
                    one.there.close()
                    one.there, one.gone, one.left = _connected(port), False, None
                    chosen.register(one.there, selectors.EVENT_READ, one)
                one.due = max(one.due + every, done) if rate is None else one.due + every
                waiting.append(one)
                busy -= 1
    took = time.perf_counter() - start
    for one in senders:
        one.there.close()
    return Load(size * (len(latencies) - refused), took, latencies, refused)


def _connected(port: int) -> socket.socket:
    there = socket.create_connection(("127.0.0.1", port))
    there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    there.setblocking(False)
    return there


def _send(chosen: selectors.BaseSelector, sender: Sender) -> None:
    assert sender.left is not None
    with suppress(BlockingIOError, ConnectionResetError, BrokenPipeError):
        sender.left = sender.left[sender.there.send(sender.left) :]
    more = selectors.EVENT_WRITE if sender.left else 0
    chosen.modify(sender.there, selectors.EVENT_READ | more, sender)


def _answered(sender: Sender) -> bool:
    """Take what came. Return whether the answer is whole, and note whether it is another than 200."""
    try:
        part = sender.there.recv(65536)
    except ConnectionResetError:
        part = b""
    if not part:
        sender.refused, sender.gone = True, True
        sender.answer.clear()
        return True
    sender.answer += part
    head, found, body = bytes(sender.answer).partition(b"\r\n\r\n")
    if not found:
        return False
    length = re.search(rb"(?i)content-length: (\d+)", head)
    if length is None or len(body) < int(length[1]):
        return False
    sender.refused = b" 200 " not in head[:16]
    sender.answer.clear()
    return True
