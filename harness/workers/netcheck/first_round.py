"""In a large job, probe all peers for the first time in one thread.

In the thread pool (pool.py), a thread has to wait for a CPU after each step of a probe. If a node runs many
ranks, it then spends most of its CPU time on switching between threads. Here, a single thread advances every
probe whose socket is ready.

This round can only confirm that a peer has no fault. If a probe does not succeed immediately, it starts again
in the pool, which determines the cause.
"""

from __future__ import annotations

import json
import os
import random
import select
import socket
import threading
import time
from collections.abc import Callable, Generator, Sequence

from . import dns_client
from .dns_client import Answer
from .greeting import Greeted, Hello, greeting
from .interfaces import families, recent_addresses
from .messages import HEADER, parse_header
from .mtu import message
from .name_resolution import Lookup, Names
from .probe import Probe

SIZE = 48 * 1024
"""Number of bytes that each probe sends to fill packets. They fit into the receive window of a new TCP
connection."""
WINDOW = 8
"""Maximum number of probes that run at the same time."""
GIVE_UP = 1.5
"""Seconds without progress after which a probe is restarted in the pool."""
MAX_SILENT = 2 * WINDOW
"""After this many probes without progress, the probes that have not started run in the pool. The pool adds
threads as long as peers do not respond."""
Wait = tuple[socket.socket, int]
"""The socket that a probe waits for, and the events of poll(2)."""


def run(probes: Sequence[Probe], stop: threading.Event, again: Callable[[Probe], object]) -> None:
    """Probe each peer once, unless `stop` is set. Call `again` with each probe that did not succeed."""
    if 4 not in families(recent_addresses()):
        for probe in probes:
            again(probe)
        return
    waiting = list(reversed(probes))
    active: dict[int, tuple[Generator[Wait, None, bool], Probe, float]] = {}
    poll, silent = select.poll(), 0

    def go_on(attempt: Generator[Wait, None, bool], probe: Probe) -> None:
        try:
            connection, events = next(attempt)
        except StopIteration as end:
            if not end.value:
                again(probe)
        except Exception:  # Whatever a peer or a DNS server sends, the other probes continue.
            again(probe)
        else:
            poll.register(connection, events)
            active[connection.fileno()] = attempt, probe, time.monotonic()

    while (waiting or active) and not stop.is_set():
        while waiting and len(active) < WINDOW:
            probe = waiting.pop()
            go_on(_attempt(probe), probe)
        ready = [descriptor for descriptor, _ in poll.poll(100)]
        for descriptor in ready:
            poll.unregister(descriptor)
            attempt, probe, _ = active.pop(descriptor)
            go_on(attempt, probe)
        now = time.monotonic()
        for descriptor in [each for each, (_, _, since) in active.items() if now - since > GIVE_UP]:
            poll.unregister(descriptor)
            attempt, probe, _ = active.pop(descriptor)
            attempt.close()
            again(probe)
            silent += 1
        if silent >= MAX_SILENT:
            for probe in reversed(waiting):
                again(probe)
            waiting = []
    for attempt, _, _ in active.values():
        attempt.close()


def _attempt(probe: Probe) -> Generator[Wait, None, bool]:
    """Probe a peer. Yield each socket to wait for, and return whether the probe succeeded."""
    lookup = yield from _lookup(probe.names, probe.host)
    if lookup is None:
        return False
    address = lookup.addresses[0]
    if ":" in address:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.connect_ex((address, probe.port))
        yield connection, select.POLLOUT
        at, began = time.time(), time.monotonic()
        connection.sendall(greeting(probe.own))
        # The full packets are sent before the response arrives, so that the peer has to wake up only once.
        packets = message(SIZE)
        packets = packets[connection.send(packets) :]
        received = bytearray()
        there = Hello(**json.loads((yield from _body(connection, received))))
        rtt = time.monotonic() - began
        while packets:
            yield connection, select.POLLOUT
            packets = packets[connection.send(packets) :]
        if int((yield from _body(connection, received))) != SIZE:
            return False
        rate = SIZE / max(time.monotonic() - began, 1e-6)
        return probe.succeed(
            lookup, address, Greeted(there, rtt=rtt, offset=there.clock - at - rtt / 2), rate
        )


def _body(connection: socket.socket, received: bytearray) -> Generator[Wait, None, bytes]:
    """Return the body of the next message, and remove the message from `received`."""
    while True:
        parsed = parse_header(received)
        if parsed is not None and len(received) >= HEADER.size + parsed[1]:
            end = HEADER.size + parsed[1]
            body = bytes(received[HEADER.size : end])
            del received[:end]
            return body
        yield connection, select.POLLIN
        data = connection.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the connection ended")
        received += data


def _lookup(names: Names, host: str) -> Generator[Wait, None, Lookup | None]:
    """Return the IPv4 addresses of a name, or None if they cannot be determined immediately.

    As in name_resolution.py, the address is queried only after the DNS replica has confirmed that the name
    exists. No second replica is queried, because all ranks query each name anyway.
    """
    if (known := names.known(host)) is not None:
        return known
    for server in names.configuration.servers[:1]:
        for candidate in names.configuration.candidates(host):
            family = socket.AF_INET6 if ":" in server else socket.AF_INET
            with socket.socket(family, socket.SOCK_DGRAM) as client:
                client.setblocking(False)
                client.connect((server, dns_client.PORT))
                began = time.monotonic()
                exists = yield from _answer(client, candidate, random.choice(dns_client.UNASSIGNED))
                names.record(time.monotonic() - began)
                if exists.kind == "nodata":
                    answer = yield from _answer(client, candidate, dns_client.A)
                    found = Lookup(host, answer.addresses, found=candidate)
                    return found if answer.addresses else None
                if exists.kind != "nxdomain":
                    return None
    return None


def _answer(client: socket.socket, name: str, kind: int) -> Generator[Wait, None, Answer]:
    """Return the DNS server's answer. Raises ValueError if it is truncated."""
    question = dns_client.question(int.from_bytes(os.urandom(2), "big"), name, kind)
    client.send(question)
    while True:
        yield client, select.POLLIN
        reply = client.recv(65535)
        if dns_client.is_reply(reply, question):
            answer = dns_client.parse(reply, kind)
            if answer is None:
                raise ValueError("truncated")
            return answer
