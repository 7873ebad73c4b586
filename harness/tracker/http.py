"""What all routes share: Pluto's error shapes, the key, request bodies, answers, the sender."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from harness.tracker.failures import Failures
from harness.tracker.keys import launch_of
from harness.tracker.store import Store

BODY_LIMIT = 64 << 20
OPEN_PATHS = ("/healthz", "/files/put/", "/files/get/")
"""Paths that need no key: the probe, and URLs that hold a secret themselves, as Pluto's presigned ones do."""


def now() -> str:
    """RFC 3339, UTC, microseconds. Its own: the tracker's image has no other room of the harness."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def from_ms(time_ms: int) -> str:
    """Return a client's time as Pluto shows it. A time outside of the calendar stays a number."""
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Refused(HTTPException):
    """Answers a request with an error in Pluto's shape."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)


@dataclass(frozen=True)
class Sender:
    """Who sent a request, by its headers and its address."""

    run_id: int
    """X-Run-Id; 0 when it is not a number, as in Pluto's ingest."""
    run_header: str | None
    name: str | None
    project: str | None
    peer: str | None
    launch: str | None = None
    """The launch that the request's key was made for. None for the tracker's own key."""


def sender(request: Request) -> Sender:
    header = request.headers.get("x-run-id")
    number = int(header) if header and header.isascii() and header.isdigit() else 0
    return Sender(
        run_id=number if number < 1 << 63 else 0,
        run_header=header,
        name=request.headers.get("x-run-name"),
        project=request.headers.get("x-project-name"),
        peer=request.client.host if request.client else None,
        launch=getattr(request.state, "launch", None),
    )


def store(request: Request) -> Store:
    found: Store = request.app.state.store
    return found


def failures(request: Request) -> Failures:
    found: Failures = request.app.state.failures
    return found


def base_url(request: Request) -> str:
    """Return where the client reaches this server: --public-url, or what the request says."""
    public: str = request.app.state.public_url
    return public or str(request.base_url).rstrip("/")


class Json(Response):
    """JSON that may hold NaN and infinities, as the client itself writes them."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


async def body(request: Request, limit: int = BODY_LIMIT) -> bytes:
    """Return the request's body. Raises Refused 413 past `limit` bytes, before all of it is in memory."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise Refused(413, f"the body is larger than {limit} bytes")
        parts.append(part)
    return b"".join(parts)


def loads(text: bytes) -> Any:
    """Parse JSON, NaN and infinities included. Raises ValueError, also for half a surrogate pair."""
    found = json.loads(text)
    if b"\\u" in text:
        json.dumps(found, ensure_ascii=False).encode()
    return found


async def fields(request: Request) -> dict[str, Any]:
    """Return the body as a JSON object. Raises Refused 400 otherwise."""
    try:
        found = loads(await body(request))
    except (ValueError, RecursionError):
        raise Refused(400, "Malformed JSON in request body") from None
    if not isinstance(found, dict):
        raise Refused(400, "The request body must be a JSON object")
    return found


def integer(value: object, name: str) -> int:
    """Return a database integer. Raises Refused 400 otherwise."""
    if isinstance(value, str) and value.isascii() and value.lstrip("-").isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
        raise Refused(400, f"{name}: expected an integer")
    return value


def number(request: Request, name: str, default: int | None = None, most: int | None = None) -> int:
    """Return a whole number of the query, from 0 to `most`. Raises Refused 400 when it is missing or
    something else.
    """
    text = request.query_params.get(name)
    if text is None:
        if default is None:
            raise Refused(400, f"{name}: required")
        return default
    value = integer(text, name)
    if value < 0:
        raise Refused(400, f"{name}: must not be negative")
    return value if most is None else min(value, most)


def optional_number(request: Request, name: str) -> int | None:
    return number(request, name) if name in request.query_params else None


def text(request: Request, name: str) -> str:
    """Return a query parameter that must be there. Raises Refused 400 otherwise."""
    value = request.query_params.get(name)
    if not value:
        raise Refused(400, f"{name}: required")
    return value


def numbers(request: Request, name: str) -> list[int]:
    """Return comma-separated integers of the query, or [] when absent."""
    return [integer(part.strip(), name) for part in request.query_params.get(name, "").split(",") if part]


def refusal(path: str, status: int, reason: str) -> Response:
    """Return an error in the words of the part of Pluto that owns `path`."""
    if path.startswith(("/ingest", "/files")):
        return Json({"code": status, "message": reason}, status)
    if status == 401:
        return Json({"error": "Unauthorized", "message": reason}, status)
    return Json({"error": reason}, status)


async def on_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(request.url.path, error.status_code, error.detail)


async def on_error(request: Request, error: Exception) -> Response:
    """Answer 500, or 507 when the disk is full, and remember it for the audit view."""
    reason = f"{type(error).__name__}: {error}"
    failures(request).add(reason, now())
    full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return refusal(request.url.path, 507 if full else 500, reason)


class KeyRequired:
    """ASGI: lets a request pass with `Authorization: Bearer KEY` or `X-Api-Key: KEY`.

    The second is for callers behind the Kubernetes API server's proxy, which takes Authorization away. A key
    may be that of a launch (keys.py), so that each request is known to be of that launch.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self.app = app
        self.key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(OPEN_PATHS):
            await self.app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        bearer = headers.get(b"authorization", b"")
        given = [bearer[7:] if bearer[:7].lower() == b"bearer " else b"", headers.get(b"x-api-key", b"")]
        launches = [launch for one in given if (launch := launch_of(one.strip(), self.key)) is not None]
        if launches:
            scope.setdefault("state", {})["launch"] = launches[0] or None
            await self.app(scope, receive, send)
            return
        reason = "Invalid API key" if any(given) else "Missing API key"
        await refusal(scope["path"], 401, reason)(scope, receive, send)
