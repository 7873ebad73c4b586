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
    """A token bucket: the number of remaining attempts, refilled over time."""

    most: float
    seconds: float
    """The number of seconds in which one attempt is refilled."""
    left: float
    at: float

    def refill(self, now: float) -> None:
        self.left = min(self.most, self.left + (now - self.at) / self.seconds)
        self.at = now


class Throttle:
    """Counts failed login attempts from each address, and from all addresses together."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all = Bucket(most=100, seconds=1, left=100, at=clock())
        self._of: OrderedDict[str, Bucket] = OrderedDict()

    def wait(self, address: str) -> float:
        """Return the number of seconds until the next login attempt from an address is permitted. 0 means
        now."""
        now = self._clock()
        self._all.refill(now)
        buckets = [self._all]
        if (own := self._of.get(_network(address))) is not None:
            own.refill(now)
            buckets.append(own)
        return max(0.0, *((1 - one.left) * one.seconds for one in buckets))

    def failed(self, address: str) -> None:
        """Count a failed login attempt from an address."""
        now, network = self._clock(), _network(address)
        own = self._of.setdefault(network, Bucket(most=10, seconds=10, left=10, at=now))
        self._of.move_to_end(network)
        if len(self._of) > ADDRESSES:
            self._of.popitem(last=False)
        for bucket in (self._all, own):
            bucket.refill(now)
            bucket.left -= 1


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
