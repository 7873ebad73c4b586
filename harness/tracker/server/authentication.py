"""ASGI middleware that checks the API key and responds to errors. It runs before every route."""

from __future__ import annotations

import logging
import sqlite3

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harness.tracker.api.http import failures, hung_up, refusal, refused, sender
from harness.tracker.server import scopes
from harness.tracker.shared.keys import grant_of
from harness.tracker.shared.requests import Busy, Refused, now
from harness.tracker.storage.store import QUERY_SECONDS, Full, Slow

logger = logging.getLogger("uvicorn.error")
WRITES = ("/ingest/", "/files", "/api/runs/create", "/api/runs/resume", "/api/runs/status")
"""Paths of write requests. If such a request is rejected, data of a run can be lost."""
OPEN_PATHS = (
    *("/healthz", "/openapi.json", "/files/put/", "/files/get/"),
    *("/o/", "/pages/", "/login", "/logout"),
)
"""Paths that need no key: the probe, the OpenAPI document, URLs that contain a secret (like Pluto's presigned
URLs), and the pages, which require a session (pages/doors.py)."""


async def on_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if request.url.path.startswith(WRITES):
        who = sender(request)
        reason = f"{request.url.path} {error.status_code}: {error.detail}"
        refused(request).add(reason, now(), sender=who.name, run_id=who.run_id or None, launch=who.launch)
    response = refusal(request.url.path, error.status_code, error.detail)
    response.headers.update(error.headers or {})
    return response


def on_error(request: Request, error: Exception) -> Response:
    """Return a response with 500, or 507 if the disk is full. Record the failure for the audit view."""
    reason = f"{type(error).__name__}: {error}"
    failures(request).add(reason, now())
    full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return refusal(request.url.path, 507 if full else 500, reason)


class Guard:
    """ASGI middleware that converts every error of a route to a response.

    If an exception reached the server, the server would close the connection and the client would lose its
    next request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = False

        async def noting(message: Message) -> None:
            nonlocal began
            began = began or message["type"] == "http.response.start"
            await send(message)

        request = Request(scope)
        try:
            await self.app(scope, receive, noting)
        except ClientDisconnect:
            hung_up(request).add(f"{scope['path']}: hung up", now(), sender=sender(request).name)
        except HTTPException as error:
            await (await on_refused(request, error))(scope, receive, noting)
        except Full:
            response = await on_refused(request, Busy("the tracker's queue of writes is full"))
            await response(scope, receive, noting)
        except Slow:
            response = refusal(scope["path"], 503, f"the query took longer than {QUERY_SECONDS:g} s")
            await response(scope, receive, noting)
        except Exception as error:
            logger.exception("%s %s", scope["method"], scope["path"])
            response = on_error(request, error)
            if not began:
                await response(scope, receive, noting)


class KeyRequired:
    """ASGI middleware that requires `Authorization: Bearer KEY` or `X-Api-Key: KEY`.

    X-Api-Key is for requests through the Kubernetes API server's proxy, which removes Authorization. A
    request with the key of a launch (keys.py) is assigned to that launch. The key of a project gives access
    only to that project (scopes.py).
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self.app = app
        self.key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == "/" or scope["path"].startswith(OPEN_PATHS):
            await self.app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        bearer = headers.get(b"authorization", b"")
        given = [bearer[7:] if bearer[:7].lower() == b"bearer " else b"", headers.get(b"x-api-key", b"")]
        grants = [grant for one in given if (grant := grant_of(one.strip(), self.key)) is not None]
        if grants:
            state = scope.setdefault("state", {})
            state["launch"], state["project"] = grants[0].launch, grants[0].project
            if grants[0].project is not None:
                request = Request(scope)
                try:
                    await scopes.check(request, grants[0].project)
                except Refused as error:
                    await (await on_refused(request, error))(scope, receive, send)
                    return
            await self.app(scope, receive, send)
            return
        reason = "Invalid API key" if any(given) else "Missing API key"
        await refusal(scope["path"], 401, reason)(scope, receive, send)
