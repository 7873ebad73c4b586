"""POST /ingest/{metrics,logs,data}: receive newline-delimited JSON.

Rows are committed before the response is sent.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from harness.tracker.api import http
from harness.tracker.api import request_bodies as body_limits
from harness.tracker.shared.requests import Refused, Sender
from harness.tracker.storage import ingest_lines
from harness.tracker.storage.writer import Sent

SMALL = 128 << 10
"""The size of the largest body that is parsed in the event loop, in bytes. Parsing such a body takes at most
2 ms with the native parser, and 20 ms with the Python parser."""
METRICS = "/ingest/metrics"
T = TypeVar("T")
StoreLines = Callable[[sqlite3.Connection, Sender, ingest_lines.Lines], None]


def _route(
    rows_of: Callable[[bytes], list[ingest_lines.Row]], store_lines: StoreLines
) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        sender = _sender(request)
        async with body_limits.body(request) as text:
            lines = await _parsed(request, text, lambda body: ingest_lines.read(body, rows_of))
            await http.store(request).write(lambda db: store_lines(db, sender, lines))
        return _answer(lines.error, lines.lines)

    return handle


async def metrics(request: Request) -> Response:
    sender = _sender(request)
    async with body_limits.body(request) as text:
        points = await _parsed(request, text, ingest_lines.read_points)
        await http.store(request).write_points(Sent(sender, points))
    return _answer(points.error, points.lines)


async def _parsed(request: Request, text: bytes, parse: Callable[[bytes], T]) -> T:
    """Parse an ingest request's body.

    A large body is parsed in a thread, so that the event loop stays responsive.
    """
    if len(text) <= SMALL:
        return parse(text)
    return await asyncio.get_running_loop().run_in_executor(request.app.state.parsing, parse, text)


def _sender(request: Request) -> Sender:
    sender = http.sender(request)
    if not sender.run_header or not sender.project:
        raise Refused(400, "X-Run-Id and X-Project-Name: required")
    return sender


def _answer(error: str | None, lines: int) -> Response:
    if error is not None:
        raise Refused(422, error)
    return PlainTextResponse(f"Stream processed successfully: {lines} records")


routes = [
    Route(METRICS, metrics, methods=["POST"]),
    Route("/ingest/logs", _route(ingest_lines.log_rows, ingest_lines.store_logs), methods=["POST"]),
    Route("/ingest/data", _route(ingest_lines.data_rows, ingest_lines.store_data), methods=["POST"]),
]
