"""ASGI middleware that turns exceptions into error responses, and a shortcut that serves the most frequent
request without routing."""

from __future__ import annotations

import errno
import logging
import sqlite3

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harness.tracker.api import routes_ingest
from harness.tracker.api.http import admitted, failures, hung_up, refusal, refused, sender
from harness.tracker.server.access import ACCESS, METRICS, admit
from harness.tracker.shared.requests import Busy, now
from harness.tracker.storage.database import QUERY_SECONDS, Full, Slow

logger = logging.getLogger("uvicorn.error")
WRITES = ("/ingest/", "/files", "/api/runs/create", "/api/runs/resume", "/api/runs/status")
"""The prefixes of the paths of write requests. If such a request is rejected, a run can lose data."""
SECRET_PATHS = ("/files/put/", "/files/get/")
"""The prefixes of paths that end with a secret, like the paths of Pluto's presigned URLs."""


def redacted_path(path: str) -> str:
    """Return a request path for logs and the audit view, without the secret at the end of an upload or
    download URL."""
    return next((f"{start}…" for start in SECRET_PATHS if path.startswith(start)), path)


async def on_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    if path.startswith(WRITES) and admitted(request):
        source = sender(request)
        reason = f"{redacted_path(path)} {error.status_code}: {error.detail}"
        refused(request).add(
            reason, now(), sender=source.name, run_id=source.run_id or None, launch=source.launch
        )
    response = refusal(path, error.status_code, error.detail)
    response.headers.update(error.headers or {})
    return response


def on_error(request: Request, error: Exception) -> Response:
    """Return a 500 response for an unexpected exception, or a 507 response if the disk is full.

    The failure is recorded for the audit view.
    """
    reason = f"{type(error).__name__}: {error}"
    failures(request).add(reason, now())
    is_disk_full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    is_disk_full = is_disk_full or (isinstance(error, OSError) and error.errno == errno.ENOSPC)
    return refusal(request.url.path, 507 if is_disk_full else 500, reason)


class Guard:
    """ASGI middleware that converts every exception in a route to an error response.

    If an exception reached uvicorn, uvicorn would close the connection, and the client's next request would
    fail.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        response_started = False

        async def noting(message: Message) -> None:
            nonlocal response_started
            response_started = response_started or message["type"] == "http.response.start"
            await send(message)

        request = Request(scope)
        try:
            await self.app(scope, receive, noting)
        except ClientDisconnect:
            if admitted(request):
                hung_up(request).add(
                    f"{redacted_path(scope['path'])}: hung up", now(), sender=sender(request).name
                )
        except HTTPException as error:
            await (await on_refused(request, error))(scope, receive, noting)
        except Full:
            response = await on_refused(request, Busy("the tracker's write queue is full: try again later"))
            await response(scope, receive, noting)
        except Slow:
            response = refusal(scope["path"], 503, f"the query took longer than {QUERY_SECONDS:g} s")
            await response(scope, receive, noting)
        except Exception as error:
            logger.exception("%s %s", scope["method"], redacted_path(scope["path"]))
            response = on_error(request, error)
            if not response_started:
                await response(scope, receive, noting)


class Straight:
    """ASGI middleware that passes POST /ingest/metrics requests directly to their handler, `metrics`.

    Routing such a request would take as long as parsing 100 points.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == routes_ingest.METRICS and scope["method"] == "POST":
            request = Request(scope, receive)
            await admit(request, ACCESS[METRICS])
            response = await routes_ingest.metrics(request)
            await response(scope, receive, send)
        else:
            await self.app(scope, receive, send)
