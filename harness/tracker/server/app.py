"""The ASGI application: all routes, API key authentication, and the database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from harness.tracker.api import (
    http,
    openapi,
    routes_audit,
    routes_files,
    routes_ingest,
    routes_reads,
    routes_runs,
)
from harness.tracker.api.http import Json
from harness.tracker.api.uploads import Uploads
from harness.tracker.pages import routes
from harness.tracker.pages.sessions import Links, Sessions
from harness.tracker.pages.throttle import Throttle
from harness.tracker.server import middleware
from harness.tracker.server.access import Keyring, admitted
from harness.tracker.shared.failures import Failures
from harness.tracker.storage import run_timeouts
from harness.tracker.storage.database import Store

PARSERS = 2
"""The number of threads that parse large requests, so that the event loop stays responsive."""


@dataclass(frozen=True)
class Options:
    """The options of the tracker's server."""

    db: Path
    key: str = field(repr=False)
    public_url: str = ""
    """The base URL of the links in responses. If the base URL is empty, the request's Host header is used."""
    file_limit: int = 64 << 20
    """The maximum size of one file, in bytes."""
    stale_seconds: float = run_timeouts.HEARTBEAT_SECONDS
    """The number of seconds without a sign of life after which a run is shown as FAILED (run_timeouts.py). 0
    means never."""
    files_limit: int = 1 << 30
    """The maximum total size of all files, in bytes."""


async def healthz(request: Request) -> Response:
    """Handle GET /healthz: return 200 as long as the thread that writes to the database is running.

    The handler runs no query, so that a busy tracker stays ready.
    """
    alive = http.store(request).alive
    return Json({"status": "ok" if alive else "the writer thread has stopped"}, 200 if alive else 503)


def build(options: Options) -> Starlette:
    """Return the ASGI application, which opens the database at startup and closes the database at
    shutdown."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.store = Store(options.db, stale_seconds=options.stale_seconds)
        try:
            yield
        finally:
            app.state.store.close()

    app = Starlette(
        routes=[
            admitted(route)
            for route in (
                *routes_ingest.routes,  # Routes are tried in order, so the most frequent come first.
                Route("/healthz", healthz),
                *routes_runs.routes,
                *routes_files.routes,
                *routes_reads.routes,
                *routes_audit.routes,
                *openapi.routes,
                *routes.routes,
            )
        ],
        middleware=[Middleware(middleware.Guard), Middleware(middleware.Straight)],
        exception_handlers={HTTPException: middleware.on_refused},
        lifespan=lifespan,
    )
    app.state.failures, app.state.refused, app.state.hung_up = Failures(), Failures(), Failures()
    app.state.body_bytes, app.state.key, app.state.keyring = 0, options.key, Keyring(options.key)
    app.state.links, app.state.sessions, app.state.logins = Links(), Sessions(), Throttle()
    app.state.uploads = Uploads()
    app.state.parsing = ThreadPoolExecutor(PARSERS, thread_name_prefix="parse")
    app.state.public_url = options.public_url.rstrip("/")
    app.state.file_limit = options.file_limit
    app.state.files_limit = options.files_limit
    return app
