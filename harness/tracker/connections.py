"""Connections that ask for nothing, or never end asking, are closed. Others keep theirs.

uvicorn has a limit for connections between two requests, and none for those before the first one or in the
middle of a request's head. A thousand of those would take every file descriptor.
"""

from __future__ import annotations

import asyncio
import resource
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 20.0
"""Longest time from a connection, or the first byte of a request, to the end of the request's head."""
SPARE = 128
"""File descriptors that are not for connections: the database, files, threads."""


def raise_limit() -> int:
    """Take as many file descriptors as this process may have. Return how many connections may be open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if most == resource.RLIM_INFINITY else min(most, 65536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return max(SPARE, wanted - SPARE)


class Connection(H11Protocol):
    """One connection with a deadline for each request's head."""

    most = 1024
    """Connections at once. One more closes the oldest of those that have not asked for anything yet."""
    _waiting: dict[Connection, None] = {}  # noqa: RUF012 # of all connections, by age
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        if len(self.connections) > self.most:
            next(iter(self._waiting), self).transport.close()
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        if self._late is None and (before is None or before.response_complete):
            self._await_head()
        super().data_received(data)
        if self.cycle is not before:
            self._head_came()

    def _await_head(self) -> None:
        self._waiting[self] = None
        self._late = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _head_came(self) -> None:
        self._waiting.pop(self, None)
        if self._late is not None:
            self._late.cancel()
            self._late = None
