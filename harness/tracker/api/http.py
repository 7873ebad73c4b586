"""What all routes share: the sender of a request, its query, what the application holds, and answers."""

from __future__ import annotations

import json
from typing import Any

from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from harness.tracker.shared.failures import Failures
from harness.tracker.shared.requests import Refused, Sender, integer
from harness.tracker.storage.store import Store


class Digits(IntegerConvertor):
    """{name:int} in the path of a route. Starlette's own takes any number of digits, and fails past 4300."""

    regex = "[0-9]{1,19}"


register_url_convertor("int", Digits())


def sender(request: Request) -> Sender:
    """Return who sent a request. Of a header that came twice the first counts."""
    scope = request.scope
    headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
    run, name, project = (
        None if value is None else value.decode("latin-1")
        for value in map(headers.get, (b"x-run-id", b"x-run-name", b"x-project-name"))
    )
    number = int(run) if run and run.isascii() and run.isdigit() else 0
    client, state = scope.get("client"), scope.get("state") or {}
    return Sender(
        run_id=number if number < 1 << 63 else 0,
        run_header=run,
        name=name,
        project=project,
        peer=client[0] if client else None,
        launch=state.get("launch"),
        only=state.get("project"),
        process=_process(headers.get(b"x-harness-process")),
    )


def _process(given: bytes | None) -> str | None:
    return given.decode("latin-1")[:100] if given else None


def store(request: Request) -> Store:
    found: Store = request.app.state.store
    return found


def failures(request: Request) -> Failures:
    """Return the requests that the tracker failed."""
    found: Failures = request.app.state.failures
    return found


def refused(request: Request) -> Failures:
    """Return the writes that the tracker refused, with their senders."""
    found: Failures = request.app.state.refused
    return found


def hung_up(request: Request) -> Failures:
    """Return the requests whose senders went away before they were complete."""
    found: Failures = request.app.state.hung_up
    return found


def base_url(request: Request) -> str:
    """Return where the client reaches this server: --public-url, or what the request says."""
    public: str = request.app.state.public_url
    return public or str(request.base_url).rstrip("/")


class Json(Response):
    """JSON that may hold NaN and infinities, as the client itself writes them."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        # Half a surrogate pair, which an older tracker stored, is written as JSON's own escape of it.
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(
            errors="backslashreplace"
        )


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
