"""Check with a cluster's provider, such as kind, whether the control plane still exists and runs.

This is done only while the API server does not respond.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

FIRST_SECONDS, MAX_SECONDS = 3.0, 30.0
"""FIRST_SECONDS is the time without a response after which the provider is first queried, in seconds.
MAX_SECONDS is the maximum interval between two queries.

The intervals increase from FIRST_SECONDS to MAX_SECONDS.
"""
STOPPED_SECONDS = 60.0
"""The number of seconds without a response after which a stopped control plane counts as lost.

A stopped container does not start again on its own, but somebody may be restarting it.
"""


def _nothing() -> str | None:
    return None


@dataclass
class ControlPlane:
    """The control plane of a cluster, as reported by its provider.

    `deleted` returns a sentence if the cluster was deleted, and `stopped` returns a sentence if its control
    plane is stopped. Otherwise, they return None. Both query the provider.
    """

    deleted: Callable[[], str | None] = _nothing
    stopped: Callable[[], str | None] = _nothing
    _next: float = 0.0

    def due(self, silence: float) -> bool:
        """Return whether to query the provider now.

        `silence` is the number of seconds for which the API server has not responded.
        """
        if silence < FIRST_SECONDS:
            self._next = FIRST_SECONDS
            return False
        if silence < self._next:
            return False
        self._next = silence + min(max(silence, FIRST_SECONDS), MAX_SECONDS)
        return True

    def lost(self, silence: float) -> str | None:
        """Return a sentence if the control plane is stopped and counts as lost, otherwise None.

        Call this only after `due` has returned True. `silence` is the number of seconds without a response.
        """
        description = self.stopped()
        if description is not None and silence < STOPPED_SECONDS:
            self._next = min(self._next, STOPPED_SECONDS)
            return None
        return description
