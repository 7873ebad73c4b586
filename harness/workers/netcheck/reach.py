"""Open a TCP connection. If this fails, determine the cause from errno and from the ICMP message behind it.

The same errno can have several causes. "No route to host" can mean a missing route, a missing machine, or a
firewall that rejects the connection. The ICMP message (RFC 792, 1812, 4443) contains the reason, and its
source address shows which machine sent it. Linux keeps the message in the socket's error queue (ip(7),
IP_RECVERR).
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import struct
import time
from dataclasses import dataclass

CONNECT_SECONDS = 3.5
"""Timeout in seconds for connecting. It is longer than an ARP or NDP lookup (3 × 1 s), so that a missing
machine can be distinguished from a filter."""
THERE_SECONDS = 0.5
"""After an ICMP "unreachable", the timeout in seconds for testing whether the machine exists."""
REJECTED = "tcp.rejected"
DISCARD = 9
"""A port on which usually nothing listens. If a machine exists, it responds to a connection attempt there
with a reset."""

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
_RECVERR = {socket.AF_INET: (socket.IPPROTO_IP, 11), socket.AF_INET6: (socket.IPPROTO_IPV6, 25)}
_MSG_ERRQUEUE = 0x2000
_ERROR = struct.Struct("=IBBBxII")
"""struct sock_extended_err: errno, origin, type, code, info, data. The sender's address follows."""
_UNREACHABLE = {2: 3, 3: 1}
"""Maps the origin of an error (2 for ICMP, 3 for ICMPv6) to the type of "destination unreachable"."""
_REJECTED = {
    (2, 2): "protocol unreachable",
    (2, 3): "port unreachable",
    (2, 9): "network administratively prohibited",
    (2, 10): "host administratively prohibited",
    (2, 13): "communication administratively prohibited",
    (3, 1): "communication administratively prohibited",
    (3, 4): "port unreachable",
    (3, 5): "source address failed ingress/egress policy",
    (3, 6): "reject route to destination",
}
"""Maps (origin, code) to the name of an ICMP message. In response to a TCP packet, only a firewall sends
these messages. A host never sends "port unreachable" for a closed TCP port, but a reset (RFC 9293,
3.10.7.1)."""


@dataclass(frozen=True)
class Icmp:
    """An ICMP error in response to a TCP packet, and the address of the machine that sent it."""

    origin: int
    kind: int
    code: int
    sender: str

    @property
    def rejected(self) -> str:
        """The message's name if only firewalls send it, otherwise ""."""
        return _REJECTED.get((self.origin, self.code), "") if self.unreachable else ""

    @property
    def unreachable(self) -> bool:
        return _UNREACHABLE.get(self.origin) == self.kind

    @property
    def text(self) -> str:
        """The message's name, with its type and code."""
        name = self.rejected or ("unreachable" if self.unreachable else "undeliverable")
        return f"{name} (ICMP{'' if self.origin == 2 else 'v6'} {self.kind}/{self.code})"


@dataclass
class Reached:
    """A connection, or the cause if there is none.

    `text` is the kernel's error message or the ICMP message. `sender` is the address of the machine that
    sent the ICMP message, or "".
    """

    connection: socket.socket | None
    cause: str | None
    text: str
    seconds: float
    sender: str = ""
    unrouted: bool = False
    """Whether this pod's own routing table has no route to the address."""


def cause_of(error: OSError) -> str:
    """Return the cause that corresponds to an error from `connect`, `send` or `recv`."""
    if isinstance(error, socket.timeout):  # Since Python 3.10, socket.timeout is an alias of TimeoutError.
        return "tcp.filtered"
    return _BY_ERRNO.get(error.errno or 0, "tcp.reset")


def connect(address: str, port: int, seconds: float = CONNECT_SECONDS, segment: int | None = None) -> Reached:
    """Open a TCP connection within `seconds`. Return it, or the cause if it cannot be opened.

    `segment` is the maximum TCP segment size in both directions, in bytes.
    """
    start = time.monotonic()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(seconds)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # Not every container's kernel supports IP_RECVERR.
            connection.setsockopt(*_RECVERR[family], 1)
        if segment is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment)
        connection.connect((address, port))
    except OSError as error:
        icmp = _icmp(connection)
        connection.close()
        duration = time.monotonic() - start
        cause = cause_of(error)
        if icmp is not None:
            return _by_icmp(icmp, address, error, duration)
        text = (
            f"no answer for {duration:.1f} s" if cause == "tcp.filtered" else (error.strerror or str(error))
        )
        return Reached(None, cause, text, duration, unrouted=error.errno == errno.ENETUNREACH)
    return Reached(connection, None, "connected", time.monotonic() - start)


def _by_icmp(icmp: Icmp, address: str, error: OSError, duration: float) -> Reached:
    """Return the cause based on the ICMP message's code and sender, and on whether the machine exists."""
    message = f"{error.strerror or error}: {icmp.sender} responds with {icmp.text!r}"
    if _own(icmp.sender):
        # A pod's own kernel generates "host unreachable" if no machine on its link has the address.
        is_denied = bool(icmp.rejected)
        text = (
            f"{message}, so a firewall in this pod rejects the connection"
            if is_denied
            else f"{message}, and {icmp.sender} is this pod"
        )
        return Reached(None, "tcp.denied" if is_denied else "tcp.no_route", text, duration, icmp.sender)
    place = "the machine itself" if icmp.sender == address else "a machine on the path"
    if icmp.rejected or icmp.sender == address:
        return Reached(None, REJECTED, f"{message}: {place} has a firewall", duration, icmp.sender)
    if icmp.unreachable and _is_there(address):
        text = f"{message}, but the machine responds on other ports: {place} has a firewall"
        return Reached(None, REJECTED, text, duration, icmp.sender)
    return Reached(None, "tcp.no_route", f"{message}: {place} has no route to it", duration, icmp.sender)


def _icmp(connection: socket.socket) -> Icmp | None:
    """Return the ICMP message in the socket's error queue, or None."""
    connection.setblocking(False)
    try:
        _, ancillary, _, _ = connection.recvmsg(1, 512, _MSG_ERRQUEUE)
    except OSError:
        return None
    for level, kind, data in ancillary:
        if (level, kind) in _RECVERR.values() and len(data) >= _ERROR.size + 8:
            _, origin, type_, code, _, _ = _ERROR.unpack_from(data)
            sender = _address(data[_ERROR.size :])
            if origin in _UNREACHABLE and sender:
                return Icmp(origin, type_, code, sender)
    return None


def _address(raw: bytes) -> str:
    """Return the IP address in a struct sockaddr, or "" if it does not contain one."""
    family = int.from_bytes(raw[:2], "little" if struct.pack("=H", 1)[0] else "big")
    packed = {int(socket.AF_INET): raw[4:8], int(socket.AF_INET6): raw[8:24]}.get(family, b"")
    return str(ipaddress.ip_address(packed)) if len(packed) in (4, 16) else ""


def _own(address: str) -> bool:
    """Return whether an IP address belongs to this host."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as own:
            own.bind((address, 0))
    except OSError:
        return False
    return True


def _is_there(address: str) -> bool:
    """Return whether the machine exists. If it does, it accepts or resets a connection to port DISCARD."""
    error = connect_plainly(address, DISCARD)
    return error in (None, errno.ECONNREFUSED)


def connect_plainly(address: str, port: int, seconds: float = THERE_SECONDS) -> int | None:
    """Connect and disconnect.

    Return None on success, 0 if no TCP response arrives, and otherwise the errno.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        with contextlib.suppress(OSError):
            connection.setsockopt(*_RECVERR[family], 1)
        try:
            connection.connect((address, port))
        except OSError as error:
            # The ICMP message may be from a firewall, so it does not prove that the machine exists.
            return 0 if _icmp(connection) is not None else error.errno or 0
    return None
