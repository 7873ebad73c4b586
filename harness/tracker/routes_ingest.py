"""POST /ingest/{metrics,logs,data}: newline-delimited JSON in, committed before the answer."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from harness.tracker import bodies, http, ingest

Keep = Callable[[sqlite3.Connection, http.Sender, ingest.Lines], None]


def _route(
    rows_of: Callable[[dict[str, Any]], list[ingest.Row]], keep: Keep
) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        who = http.sender(request)
        if not who.run_header or not who.project:
            raise http.Refused(400, "X-Run-Id and X-Project-Name: required")
        async with bodies.body(request) as text:
            loop, threads = asyncio.get_running_loop(), request.app.state.parsing
            lines = await loop.run_in_executor(threads, ingest.read, text, rows_of)
            await http.store(request).write(lambda db: keep(db, who, lines))
        if lines.error is not None:
            raise http.Refused(422, lines.error)
        return PlainTextResponse(f"Stream processed successfully: {lines.lines} records")

    return handle


routes = [
    Route("/ingest/metrics", _route(ingest.point_rows, ingest.keep_points), methods=["POST"]),
    Route("/ingest/logs", _route(ingest.log_rows, ingest.keep_logs), methods=["POST"]),
    Route("/ingest/data", _route(ingest.data_rows, ingest.keep_data), methods=["POST"]),
]
