"""Query a DNS server directly, over UDP and TCP (RFC 1035, 2308, 6891).

The system resolver hides details that are needed here: an answer's TTL, whether a "no such name" comes from a
cache, and whether a server does not respond at all.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import ipaddress
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from .messages import timeval

PORT = 53
A, AAAA = 1, 28
UNASSIGNED = range(4096, 32768)
"""Unassigned record types (RFC 6895). A query for such a type only shows whether the name exists."""
REPEAT = 1.0
"""Seconds after which an unanswered query is repeated for the first time. The packet may have been lost."""
_CNAME, _SOA = 5, 6
_RD, _TC = 0x0100, 0x0200
_FLOW = threading.local()
"""Inside `one_flow`, the attribute `sockets` maps each (server, port) to the socket for this thread's
queries."""


@dataclass(frozen=True)
class Answer:
    """A server's answer for one name and type.

    `kind` is answer, nodata (the name exists, but has no record of this type), nxdomain, failed (an error
    code or an invalid message), silent, refused (nothing is listening) or no_route. `ttl` is the number of
    seconds for which the answer may be cached, or None. For a negative answer, it is the SOA record's TTL or
    MINIMUM field, whichever is lower.
    """

    kind: str
    addresses: tuple[str, ...] = ()
    ttl: int | None = None
    text: str = ""

    @property
    def negative(self) -> bool:
        return self.kind in ("nodata", "nxdomain")


def ask(
    server: str,
    name: str,
    kind: int = A,
    *,
    seconds: float = 1.0,
    port: int = PORT,
) -> Answer:
    """Query a server for the records of a fully qualified name. `kind` is A, AAAA or one of UNASSIGNED.

    If there is no answer, the query is repeated after REPEAT seconds. The interval then doubles each time,
    because a busy server answers every repeated query too. The first answer to any of the queries counts.
    """
    deadline = time.monotonic() + seconds
    try:
        sent = question(int.from_bytes(os.urandom(2), "big"), name, kind)
        answer = parse(_udp(server, port, sent, seconds), kind)
        if answer is None:
            remaining = max(0.1, deadline - time.monotonic())
            answer = parse(_tcp(server, port, sent, remaining), kind)
        return answer or Answer("failed", text="truncated over TCP")
    except OSError as error:
        return Answer(_failure(error), text=error.strerror or str(error) or "no answer")
    except (ValueError, IndexError, struct.error) as error:
        return Answer("failed", text=f"invalid DNS message: {error}")


def parse(reply: bytes, kind: int) -> Answer | None:
    """Return the answer in a DNS message, or None if it is truncated.

    Raises ValueError, IndexError or struct.error for an invalid message.
    """
    _, flags, questions, answers, authorities, _ = struct.unpack_from("!6H", reply)
    if flags & _TC:
        return None
    code, at = flags & 0xF, 12
    for _ in range(questions):
        at = _skip_name(reply, at) + 4
    addresses: list[str] = []
    ttls: list[int] = []
    soa: tuple[int, int] | None = None
    for number in range(answers + authorities):
        at = _skip_name(reply, at)
        of, _, ttl, length = struct.unpack_from("!2HIH", reply, at)
        data = reply[at + 10 : at + 10 + length]
        at += 10 + length
        if number < answers and of in (kind, _CNAME):
            ttls.append(ttl)
            if of == kind:
                # inet_ntoa takes less CPU time than ip_address.
                text = socket.inet_ntoa(data) if len(data) == 4 else str(ipaddress.ip_address(data))
                addresses.append(text)
        elif of == _SOA:
            soa = (ttl, int.from_bytes(data[-4:], "big"))
    if addresses:
        return Answer("answer", tuple(addresses), min(ttls))
    if code not in (0, 3):
        names = {1: "FORMERR", 2: "SERVFAIL", 4: "NOTIMP", 5: "REFUSED"}
        return Answer("failed", text=names.get(code, f"error code {code}"))
    negative = "nxdomain" if code == 3 else "nodata"
    return Answer(negative, ttl=min(soa) if soa else None)


def question(number: int, name: str, kind: int) -> bytes:
    """Return the DNS message that queries a fully qualified name for records of type `kind`.

    Raises ValueError if the name is invalid.
    """
    return struct.pack("!6H", number, _RD, 1, 0, 0, 0) + _encoded(name) + struct.pack("!2H", kind, 1)


@functools.lru_cache
def _encoded(name: str) -> bytes:
    """Return a fully qualified name in the wire format of DNS. Raises ValueError if it is not a DNS name."""
    labels = [
        label.encode("idna" if not label.isascii() else "ascii") for label in name.rstrip(".").split(".")
    ]
    if any(not 0 < len(label) < 64 for label in labels):
        raise ValueError(f"{name!r} is not a valid DNS name")
    return b"".join(bytes([len(label)]) + label for label in [*labels, b""])


@contextlib.contextmanager
def one_flow() -> Iterator[None]:
    """Send this thread's queries from one socket for each server, so that one replica answers all of them.

    Several replicas may share the cluster's DNS address. kube-proxy and its replacements choose a replica for
    each flow, and a flow is identified by its source port, among other things. Nested blocks are separate
    flows.
    """
    outer, own = getattr(_FLOW, "sockets", None), dict[tuple[str, int], socket.socket]()
    _FLOW.sockets = own
    try:
        yield
    finally:
        _FLOW.sockets = outer
        for each in own.values():
            each.close()


@contextlib.contextmanager
def _socket(server: str, port: int) -> Iterator[socket.socket]:
    """Yield a socket for a server. Inside `one_flow`, this is the flow's socket, otherwise a new one."""
    flow = getattr(_FLOW, "sockets", None)
    asking = flow.get((server, port)) if flow else None
    if asking is None:
        asking = socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM)
        try:
            asking.connect((server, port))  # Only connected sockets report ICMP errors as errno.
        except OSError:
            asking.close()
            raise
        if flow is not None:
            flow[server, port] = asking
    try:
        yield asking
    finally:
        if flow is None:
            asking.close()


def _udp(server: str, port: int, question: bytes, seconds: float) -> bytes:
    deadline = time.monotonic() + seconds
    with _socket(server, port) as client:
        pause = REPEAT
        while True:
            client.send(question)
            reply = _reply(client, question, min(deadline, time.monotonic() + pause))
            pause *= 2
            if reply is not None:
                return reply
            if time.monotonic() >= deadline:
                raise TimeoutError(f"no answer for {seconds:.0f} s")


def _reply(client: socket.socket, question: bytes, end: float) -> bytes | None:
    """Return the message that answers the question, or None if none arrives by the monotonic time `end`."""
    while True:
        remaining = timeval(max(0.01, end - time.monotonic()))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, remaining)
        try:
            reply = client.recv(65535)
        except BlockingIOError:
            return None
        if is_reply(reply, question):
            return reply


def is_reply(reply: bytes, question: bytes) -> bool:
    """Return whether a datagram is the response to a query."""
    return len(reply) >= 12 and reply[:2] == question[:2] and bool(reply[2] & 0x80)


def _tcp(server: str, port: int, question: bytes, seconds: float) -> bytes:
    with socket.create_connection((server, port), timeout=seconds) as asking:
        asking.sendall(struct.pack("!H", len(question)) + question)
        reply = b""
        while len(reply) < 2 or len(reply) < 2 + int.from_bytes(reply[:2], "big"):
            part = asking.recv(65535)
            if not part:
                raise ValueError("the connection ended")
            reply += part
        return reply[2:]


def _failure(error: OSError) -> str:
    if isinstance(error, socket.timeout) or error.errno in (errno.ETIMEDOUT, errno.EAGAIN):
        return "silent"
    return "refused" if error.errno == errno.ECONNREFUSED else "no_route"


def _skip_name(message: bytes, at: int) -> int:
    while message[at]:
        if message[at] & 0xC0:
            return at + 2
        at += message[at] + 1
    return at + 1
