"""Open a TCP connection, or determine from errno why it failed."""

from __future__ import annotations

import errno
import socket
import time
from dataclasses import dataclass

CONNECT_SECONDS = 3.5
"""Timeout, longer than an ARP or NDP lookup (3 × 1 s), to distinguish a missing machine from a filter."""

_BY_ERRNO = {
    errno.ECONNREFUSED: "tcp.refused",
    errno.ETIMEDOUT: "tcp.filtered",
    errno.EAGAIN: "tcp.filtered",
    errno.EHOSTUNREACH: "tcp.no_route",
    errno.ENETUNREACH: "tcp.no_route",
    errno.EHOSTDOWN: "tcp.no_route",
    errno.ENETDOWN: "tcp.no_route",
    errno.EADDRNOTAVAIL: "tcp.no_route",
    errno.EAFNOSUPPORT: "address.family",
    errno.EPERM: "tcp.denied",
    errno.EACCES: "tcp.denied",
    errno.ECONNRESET: "tcp.reset",
    errno.EPIPE: "tcp.reset",
    errno.ECONNABORTED: "tcp.reset",
}


@dataclass
class Reached:
    """A connection, or the cause if there is none. `text` is the kernel's error message."""

    connection: socket.socket | None
    cause: str | None
    text: str
    seconds: float


def cause_of(error: OSError) -> str:
    """Return the cause that corresponds to an error of `connect`, `send` or `recv`."""
    if isinstance(error, socket.timeout):  # This is TimeoutError only since Python 3.10.
        return "tcp.filtered"
    return _BY_ERRNO.get(error.errno or 0, "tcp.reset")


def connect(address: str, port: int, seconds: float = CONNECT_SECONDS, segment: int | None = None) -> Reached:
    """Connect within `seconds`. `segment` is the maximum TCP segment size in both directions, in bytes."""
    began = time.monotonic()
    connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        connection.settimeout(seconds)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if segment is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment)
        connection.connect((address, port))
    except OSError as error:
        connection.close()
        took = time.monotonic() - began
        cause = cause_of(error)
        said = f"no answer for {took:.1f} s" if cause == "tcp.filtered" else (error.strerror or str(error))
        return Reached(None, cause, said, took)
    return Reached(connection, None, "connected", time.monotonic() - began)
