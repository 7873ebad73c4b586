"""The channel between a sender and a pod's receiver, and its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from harness.core.deadlines import Deadline
from harness.core.errors import HarnessError


class Cut(HarnessError):
    """The connection ended or timed out. The pod keeps the received data for the next connection."""


class PodRefused(HarnessError):
    """The pod's side refused a request. A retry would fail the same way."""


class ContainerGone(HarnessError):
    """The container does not run yet, or no longer runs. The pod's status follows a moment later."""


class Channel(Protocol):
    """An ordered byte stream to and from a receiver. Its end may be lost, so nothing depends on it."""

    def send(self, data: bytes, deadline: Deadline) -> None:
        """Send the data. Raises Cut, also if the deadline passes before all data is sent."""

    def receive(self, deadline: Deadline) -> bytes:
        """Return at least one received byte. Raises Cut, also if nothing arrives before the deadline."""

    def close(self) -> None:
        """Close the channel without waiting for the other side."""


Open = Callable[[str, Deadline], Channel]
"""A function that starts a receiver for the session of this name. Raises ContainerGone, Cut, PodRefused."""
