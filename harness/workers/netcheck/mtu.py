"""Send packets of the interface's full MTU, because a path may pass small packets and drop full-size ones.

A link on the path may have a smaller MTU than the interfaces at both ends. If the ICMP messages about this
are dropped too, connections and greetings succeed, but the first large message hangs forever (RFC 2923).
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .messages import Stream, header
from .reach import connect

PAYLOAD = 256 * 1024
"""Number of bytes per transfer. They fill many packets, even with jumbo frames."""
SECONDS = 1.5
"""Seconds to wait for a transfer. This is enough for several retransmissions (the first after 0.2 s, then
doubling)."""
SEGMENTS = (536, 1220, 1320, 1360, 1410, 8000)
"""TCP segment sizes to try after a stall, in bytes. Packets are 40 (IPv4) or 60 (IPv6) bytes larger."""


@dataclass(frozen=True)
class Filled:
    """The result of a transfer: the cause of its failure, or None and the rate in bytes per second.

    After a stall, `segment` is the largest TCP segment size with which a transfer succeeded.
    """

    cause: str | None
    text: str = ""
    rate: float = 0.0
    segment: int = 0


@functools.lru_cache
def message(size: int) -> memoryview:
    """Return the message that transfers `size` bytes."""
    return memoryview(header(b"FILL", size) + bytes(size))


def fill(
    address: str,
    port: int,
    timeout: float = SECONDS,
    stream: Stream | None = None,
) -> Filled:
    """Send full-size packets to a greeting server. Each transfer may take `timeout` seconds.

    If `stream` is given, the first transfer uses this connection, on which the server has just responded. A
    stall counts as an MTU problem only if smaller packets arrive at the same time.
    """
    duration = _transfer(stream, timeout) if stream else _seconds(address, port, None, timeout)
    durations: dict[int | None, float] = {}
    if duration is None:
        durations = _transfer_all(address, port, (None, *SEGMENTS), timeout)
        duration = durations.pop(None, None)
    if duration is not None:
        return Filled(None, rate=PAYLOAD / max(duration, 1e-6))
    segments = [segment for segment in durations if segment]
    if not segments:
        return Filled(
            "peer.silent",
            f"responds to greetings, but not to {PAYLOAD} bytes of data, whatever the packet size",
        )
    largest = max(segments)
    header = 60 if ":" in address else 40
    text = f"packets of {largest + header} bytes pass, but full-size packets are silently dropped"
    return Filled("mtu.black_hole", text, segment=largest)


def _transfer_all(
    address: str, port: int, segments: Sequence[int | None], timeout: float
) -> dict[int | None, float]:
    """Return the durations of the transfers that succeeded, keyed by segment size.

    None means full-size packets.
    """
    durations: dict[int | None, float] = {}

    def one(segment: int | None) -> None:
        duration = _seconds(address, port, segment, timeout)
        if duration is not None:
            durations[segment] = duration

    threads = [threading.Thread(target=one, args=(segment,), daemon=True) for segment in segments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return durations


def _seconds(address: str, port: int, segment: int | None, timeout: float) -> float | None:
    """Return the duration of a transfer in seconds, or None if it did not arrive in time."""
    result = connect(address, port, timeout, segment)
    if result.connection is None:
        return None
    with result.connection as connection:
        return _transfer(Stream(connection), timeout)


def _transfer(stream: Stream, timeout: float) -> float | None:
    """Return the duration of a transfer on a connection in seconds, or None if it did not arrive in time."""
    start = time.monotonic()
    try:
        stream.send(message(PAYLOAD), timeout)
        _, body = stream.receive(start + timeout)
    except (OSError, ValueError):
        return None
    return time.monotonic() - start if json.loads(body) == PAYLOAD else None
