"""The two streams of a conversation with a pod, and what can be wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from harness.core.deadlines import Deadline
from harness.core.errors import HarnessError


class Cut(HarnessError):
    """The connection ended, or nothing came in time. What was sent is kept, and another one goes on."""


class PodRefused(HarnessError):
    """The pod's side says that it cannot do what was asked. Another try would end the same."""


class ContainerGone(HarnessError):
    """The container does not run yet, or not any more. The pod's status will say so too, a moment later."""


class Channel(Protocol):
    """Bytes to a receiver and from it, whose order is kept and whose end is not relied on."""

    def send(self, data: bytes, deadline: Deadline) -> None:
        """Raises Cut, also when not all could be handed on before the deadline."""

    def receive(self, deadline: Deadline) -> bytes:
        """Return what came: at least one byte. Raises Cut, also when nothing came before the deadline."""

    def close(self) -> None:
        """Leave. Never waits for the other side."""


Open = Callable[[str, Deadline], Channel]
"""Starts a receiver for the session of this name. Raises ContainerGone, Cut or PodRefused."""
