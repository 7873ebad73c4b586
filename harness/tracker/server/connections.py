"""Close connections that do not send a request, or that never complete a request head.

uvicorn has a timeout for connections between two requests, but none before the first request or within a
request head. A thousand such connections would use up all file descriptors. uvicorn's native parser also does
not limit the size of the head.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from harness.tracker.api.request_bodies import WHOLE

HEAD_SECONDS = 20.0
"""The maximum number of seconds from the start of a connection, or from a later request's first byte, to the
end of the request's head."""
MAX_HEAD_BYTES = 64 << 10
"""The maximum size of a request without its body, in bytes. This covers the head and the chunk framing."""
FRAMES = 8
"""The maximum number of bytes of chunk framing for each byte of a request body. A chunk with one byte of data
has six bytes of framing."""
SPARE = 128
"""The number of file descriptors that are reserved for the database, files and threads."""


def raise_limit() -> int:
    """Raise the process's soft limit on open file descriptors to the hard limit or to 65536, whichever is
    lower.

    Return the number of connections that this limit allows.
    """
    _, max_connections = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 65536 if max_connections == resource.RLIM_INFINITY else min(max_connections, 65536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, max_connections))
    return max(SPARE, limit - SPARE)


class Joined:
    """A transport that sends a response's head together with the first part of its body.

    uvicorn writes head and body separately. A second system call would double the time for a small response.
    Each system call also releases the GIL, and other threads might then hold the GIL for a long time.
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
        elif data.startswith(b"HTTP/1.1 ") and len(data) < MAX_HEAD_BYTES:
            self._head = data
            self._loop.call_soon(self._send)  # If the response has no body, this call sends the head.
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

    max_connections = 1024
    """The maximum number of open connections. If one more is opened, the connection that has waited longest
    for a request head is closed."""
    _waiting: dict[Connection, None] = {}  # noqa: RUF012 # Shared by all connections, oldest first.
    _head_timer: asyncio.TimerHandle | None = None
    _unread = 0
    """The number of bytes received for the current request, not counting the body and its permitted chunk
    framing."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        joined = Joined(cast("asyncio.Transport", transport), self.loop)
        super().connection_made(cast("asyncio.Transport", joined))
        if len(self.connections) > self.max_connections:
            next(iter(self._waiting), self).transport.close()
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_received()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        self._unread += len(data)
        if self._unread > MAX_HEAD_BYTES + len(data):
            self.transport.close()
            return
        if not self.transport.is_closing():
            super().data_received(data)
        if self.cycle is not before:
            self._head_received()
        elif self._head_timer is None and (before is None or before.response_complete):
            self._await_head()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            # After an upgrade, the HTTP parser does not read a request body. The server could then respond
            # 200 without storing the rows.
            self.send_400_response("This server only supports HTTP/1.1. Do not send an Upgrade header.")
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = max(self._unread - FRAMES * len(body), -FRAMES * MAX_HEAD_BYTES)
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        self.scope[WHOLE] = True  # type: ignore[literal-required]
        if not self.transport.is_closing():
            super().on_message_complete()

    def _await_head(self) -> None:
        self._waiting[self] = None
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _head_received(self) -> None:
        self._waiting.pop(self, None)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
