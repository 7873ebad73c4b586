"""Send packets of the interface's full MTU, because a path that passes small packets may drop full ones.

If a link on the path has a smaller MTU than both ends and its ICMP messages are dropped, connections and
greetings succeed, but the first large message hangs forever (RFC 2923).
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .greeting import call
from .reach import connect

PAYLOAD = 256 * 1024
"""Number of bytes per transfer. They fill many packets, even with jumbo frames."""
_ZEROS = memoryview(bytes(PAYLOAD))
SECONDS = 1.5
"""Seconds to wait for a transfer. This covers several retransmissions (RTO 0.2 s, doubling)."""
SEGMENTS = (536, 1220, 1320, 1360, 1410, 8000)
"""TCP segment sizes to try after a stall, in bytes. Packets are 40 (IPv4) or 60 (IPv6) bytes larger."""


@dataclass(frozen=True)
class Filled:
    """The result of a transfer: the cause of its failure or None, and the rate in bytes per second.

    After a stall, `segment` is the largest TCP segment size that got through.
    """

    cause: str | None
    text: str = ""
    rate: float = 0.0
    segment: int = 0


def fill(address: str, port: int, within: float = SECONDS, connection: socket.socket | None = None) -> Filled:
    """Send full packets to a greeting server. Each transfer may take `within` seconds.

    If `connection` is given, the first transfer uses it. It is the connection on which the server has just
    responded. A stall only counts if small packets get through at the same time.
    """
    seconds = _sent(connection, within) if connection else _seconds(address, port, None, within)
    took: dict[int | None, float] = {}
    if seconds is None:
        took = _together(address, port, (None, *SEGMENTS), within)
        seconds = took.pop(None, None)
    if seconds is not None:
        return Filled(None, rate=PAYLOAD / max(seconds, 1e-6))
    passed = [segment for segment in took if segment]
    if not passed:
        return Filled("peer.silent", f"responds to greetings, but not to {PAYLOAD} bytes in any packet size")
    most = max(passed)
    header = 60 if ":" in address else 40
    text = f"packets of {most + header} bytes pass, full-size packets are dropped silently"
    return Filled("mtu.black_hole", text, segment=most)


def _together(
    address: str, port: int, segments: Sequence[int | None], within: float
) -> dict[int | None, float]:
    """Return the duration of each transfer that arrived, keyed by segment size. None means full packets."""
    took: dict[int | None, float] = {}

    def one(segment: int | None) -> None:
        seconds = _seconds(address, port, segment, within)
        if seconds is not None:
            took[segment] = seconds

    threads = [threading.Thread(target=one, args=(segment,), daemon=True) for segment in segments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took


def _seconds(address: str, port: int, segment: int | None, within: float) -> float | None:
    """Return the duration of a transfer in seconds, or None if it did not arrive in time."""
    reached = connect(address, port, within, segment)
    if reached.connection is None:
        return None
    with reached.connection as connection:
        return _sent(connection, within)


def _sent(connection: socket.socket, within: float) -> float | None:
    """Return the duration of a transfer on a connection in seconds, or None if it did not arrive in time."""
    began = time.monotonic()
    try:
        _, body = call(connection, b"FILL", _ZEROS, within)
    except (OSError, ValueError):
        return None
    return time.monotonic() - began if json.loads(body) == PAYLOAD else None
