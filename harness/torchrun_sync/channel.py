"""The interface of the channel between a sender and a pod's receiver, and its exceptions."""

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
    """Raised if the container is not running yet, or is no longer running. The pod's status may not show this
    yet."""


class Channel(Protocol):
    """An ordered byte stream in both directions between a sender and a receiver.

    The protocol does not depend on receiving the end of the stream, which may be lost.
    """

    def send(self, data: bytes, deadline: Deadline) -> None:
        """Send the data. Raises Cut if the connection ends or the deadline passes."""

    def receive(self, deadline: Deadline) -> bytes:
        """Wait for data and return at least one byte.

        Raises Cut if the connection ends or the deadline passes.
        """

    def close(self) -> None:
        """Close the channel without waiting for the receiver."""


Open = Callable[[str, Deadline], Channel]
"""A function that starts a receiver in a pod for the given session, and returns a channel to the receiver.
Raises ContainerGone, Cut or PodRefused."""
