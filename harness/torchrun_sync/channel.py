"""The channel between a sender and a pod's receiver, and its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from harness.core.deadlines import Deadline
from harness.core.errors import HarnessError


class Cut(HarnessError):
    """Raised if the connection ended or timed out. The pod keeps the data received so far."""


class PodRefused(HarnessError):
    """Raised if the pod refused a request. A retry would fail in the same way."""


class ContainerGone(HarnessError):
    """Raised if the container does not run yet, or no longer runs. The pod's status may not show this yet."""


class Channel(Protocol):
    """An ordered byte stream to and from a receiver.

    The end of the stream may be lost, so the protocol does not depend on it.
    """

    def send(self, data: bytes, deadline: Deadline) -> None:
        """Send the data. Raises Cut if the connection ends, or at the deadline."""

    def receive(self, deadline: Deadline) -> bytes:
        """Return at least one received byte. Raises Cut if the connection ends, or at the deadline."""

    def close(self) -> None:
        """Close the channel without waiting for the receiver."""


Open = Callable[[str, Deadline], Channel]
"""A function that starts a receiver for the given session. Raises ContainerGone, Cut, PodRefused."""
