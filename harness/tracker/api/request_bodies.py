"""Read request bodies within limits for size, time and memory, and parse JSON objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request

from harness.tracker.shared.requests import Busy, Refused, loads

WHOLE = "tracker whole"
"""The key that is set in a request's ASGI scope once the complete request body has been received. For most
requests, the body is complete before the task that handles the request starts."""
BODY_LIMIT = 64 << 20
"""The maximum size of a request body, in bytes."""
TOTAL_BODY_LIMIT = 96 << 20
"""The maximum total size of all request bodies that are being read, in bytes. The limit does not apply while
only one request is being read."""
BODY_SECONDS = 60
"""The maximum time between two parts of a request body, in seconds."""


async def chunks(request: Request, limit: int) -> AsyncIterator[bytes]:
    """Yield the parts of the request's body as they arrive.

    Raises Refused 413 for more than `limit` bytes, and 408 if no part arrives within BODY_SECONDS seconds.
    """
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
    """Return the next part of the body, or None after the last part.

    If the complete body has already been received, this function sets no timeout. A timeout would double the
    time needed to read a small body.
    """
    if WHOLE in request.scope:
        return await anext(stream, None)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await anext(stream, None)
    except TimeoutError:
        raise Refused(408, f"no part of the body arrived for {BODY_SECONDS} s") from None


@asynccontextmanager
async def body(request: Request, limit: int = BODY_LIMIT) -> AsyncIterator[bytes]:
    """Return an async context manager that reads the request's complete body and releases its memory at exit.

    Raises Refused 413 or 408 like `chunks`, and 429 if the bodies of all requests together exceed
    TOTAL_BODY_LIMIT.
    """
    state, size, parts = request.app.state, 0, []
    try:
        async for part in chunks(request, limit):
            size, state.body_bytes = size + len(part), state.body_bytes + len(part)
            if state.body_bytes > TOTAL_BODY_LIMIT and state.body_bytes > size:
                raise Busy("the requests in progress use too much memory: try again later")
            parts.append(part)
        yield b"".join(parts)
    finally:
        state.body_bytes -= size


async def fields(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body. Raises Refused 400 if the body is not a JSON object."""
    async with body(request) as text:
        try:
            document = loads(text)
        except (ValueError, RecursionError):
            raise Refused(400, "Malformed JSON in request body") from None
    if not isinstance(document, dict):
        raise Refused(400, "The request body must be a JSON object")
    return document
