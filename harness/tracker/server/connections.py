"""Close connections that send no request, or never complete the head of one.

uvicorn has a timeout for connections between two requests, but none before the first request or within a
request's head. A thousand such connections would use up all file descriptors. uvicorn's native parser has no
limit for the size of a head either.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from harness.tracker.api.bodies import WHOLE

HEAD_SECONDS = 20.0
"""The longest time from a new connection, or from a request's first byte, to the end of the request's
head."""
HEAD_MOST = 64 << 10
"""The most bytes of a request outside its body: its head, and the framing of its chunks."""
FRAMES = 8
"""The most bytes of framing per byte of the body. A chunk of one byte has six."""
SPARE = 128
"""File descriptors reserved for the database, files and threads."""


def raise_limit() -> int:
    """Raise the limit of file descriptors to the maximum. Return the number of connections that fit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if most == resource.RLIM_INFINITY else min(most, 65536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return max(SPARE, wanted - SPARE)


class Joined:
    """A transport that sends the head of a response together with the first part of its body.

    uvicorn writes them separately. A second system call costs as much as the rest of a small response, and
    each system call releases the GIL, which other threads may then keep for long.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 ") and len(data) < HEAD_MOST:
            self._head = data
            self._loop.call_soon(self._send)  # for a response without a body, such as to HEAD
            return
        self._transport.write(data)

    def _send(self) -> None:
        head, self._head = self._head, b""
        if head:
            self._transport.write(head)

    def close(self) -> None:
        self._send()
        self._transport.close()


class Connection(HttpToolsProtocol):
    """A connection with a deadline for each request's head."""

    most = 1024
    """The most connections. A further one closes the oldest connection that waits for a request's head."""
    _waiting: dict[Connection, None] = {}  # noqa: RUF012 # of all connections, by age
    _late: asyncio.TimerHandle | None = None
    _unread = 0
    """Received bytes of the current request without those of its body and of its framing."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        joined = Joined(cast("asyncio.Transport", transport), self.loop)
        super().connection_made(cast("asyncio.Transport", joined))
        if len(self.connections) > self.most:
            next(iter(self._waiting), self).transport.close()
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        self._unread += len(data)
        if self._unread > HEAD_MOST + len(data):
            self.transport.close()
            return
        if not self.transport.is_closing():
            super().data_received(data)
        if self.cycle is not before:
            self._head_came()
        elif self._late is None and (before is None or before.response_complete):
            self._await_head()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            # The parser would not read the body, and the server could respond 200 to rows that it never read.
            self.send_400_response("This server speaks HTTP/1.1 alone: send no Upgrade header.")
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = max(self._unread - FRAMES * len(body), -FRAMES * HEAD_MOST)
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        self.scope[WHOLE] = True  # type: ignore[literal-required]
        if not self.transport.is_closing():
            super().on_message_complete()

    def _await_head(self) -> None:
        self._waiting[self] = None
        self._late = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _head_came(self) -> None:
        self._waiting.pop(self, None)
        if self._late is not None:
            self._late.cancel()
            self._late = None
