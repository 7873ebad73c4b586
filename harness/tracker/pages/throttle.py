"""Limit failed logins, so that the tracker's own key cannot be guessed in the login form.

Only failed attempts with a key that could be guessed are counted. Project keys, one-time links and sessions
always work, so nobody can be locked out by other users of the same address.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

ADDRESSES = 1024
"""The maximum number of addresses whose failed attempts are counted separately."""


@dataclass
class Bucket:
    """A token bucket that contains the number of remaining attempts and is refilled over time."""

    capacity: float
    seconds: float
    """The number of seconds in which one attempt is refilled."""
    tokens: float
    at: float

    def refill(self, now: float) -> None:
        self.tokens = min(self.capacity, self.tokens + (now - self.at) / self.seconds)
        self.at = now


class Throttle:
    """Counts failed login attempts from each address, and from all addresses together."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all = Bucket(capacity=100, seconds=1, tokens=100, at=clock())
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def wait(self, address: str) -> float:
        """Return the number of seconds until the next login attempt from an address is permitted. 0 means
        now."""
        now = self._clock()
        self._all.refill(now)
        buckets = [self._all]
        if (own := self._buckets.get(_network(address))) is not None:
            own.refill(now)
            buckets.append(own)
        return max(0.0, *((1 - one.tokens) * one.seconds for one in buckets))

    def failed(self, address: str) -> None:
        """Count a failed login attempt from an address."""
        now, network = self._clock(), _network(address)
        own = self._buckets.setdefault(network, Bucket(capacity=10, seconds=10, tokens=10, at=now))
        self._buckets.move_to_end(network)
        if len(self._buckets) > ADDRESSES:
            self._buckets.popitem(last=False)
        for bucket in (self._all, own):
            bucket.refill(now)
            bucket.tokens -= 1


def _network(address: str) -> str:
    """Return the address under which failed login attempts are counted.

    For IPv6, this is the /64 network, because one host can use all addresses of a /64.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((int(parsed), 64), strict=False))
