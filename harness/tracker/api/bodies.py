"""Read requests: a body within its limits of size, time and memory, and JSON through one door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request

from harness.tracker.shared.requests import Busy, Refused, loads

WHOLE = "tracker whole"
"""In a request's scope: its whole body came, mostly before its task began."""
BODY_LIMIT = 64 << 20
"""Most bytes of one request."""
HELD_LIMIT = 96 << 20
"""Most bytes of all requests that are being read. One request alone may have BODY_LIMIT."""
BODY_SECONDS = 60
"""Longest silence in the middle of a request."""


async def chunks(request: Request, limit: int) -> AsyncIterator[bytes]:
    """Yield the request's body as it comes. Raises Refused: 413 past `limit` bytes, 408 when it stops."""
    size, stream = 0, request.stream()
    while True:
        part = await _next_part(request, stream)
        if part is None:
            return
        size += len(part)
        if size > limit:
            raise Refused(413, f"the body is larger than {limit} bytes")
        yield part


async def _next_part(request: Request, stream: AsyncIterator[bytes]) -> bytes | None:
    """Return a part of the body, None after the last one. A timer is set only where it has to be waited for:
    it costs as much as the rest of reading a small body.
    """
    if WHOLE in request.scope:
        return await anext(stream, None)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await anext(stream, None)
    except TimeoutError:
        raise Refused(408, f"nothing of the body came for {BODY_SECONDS} s") from None


@asynccontextmanager
async def body(request: Request, limit: int = BODY_LIMIT) -> AsyncIterator[bytes]:
    """The request's body, for as long as the block needs it.

    Raises Refused 413, 408, and 429 while the bodies of all requests together are too large for the memory.
    """
    state, held, parts = request.app.state, 0, []
    try:
        async for part in chunks(request, limit):
            held, state.held = held + len(part), state.held + len(part)
            if state.held > HELD_LIMIT and state.held > held:
                raise Busy("the requests that are being read take too much memory")
            parts.append(part)
        yield b"".join(parts)
    finally:
        state.held -= held


async def fields(request: Request) -> dict[str, Any]:
    """Return the body as a JSON object. Raises Refused 400 otherwise."""
    async with body(request) as text:
        try:
            found = loads(text)
        except (ValueError, RecursionError):
            raise Refused(400, "Malformed JSON in request body") from None
    if not isinstance(found, dict):
        raise Refused(400, "The request body must be a JSON object")
    return found
