"""Helpers for all routes: they parse requests, access the application's state, and build responses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from harness.tracker.shared.failures import Failures
from harness.tracker.shared.keys import OWNER, Grant
from harness.tracker.shared.requests import Refused, Sender, integer
from harness.tracker.storage.database import Store


class Digits(IntegerConvertor):
    """The path converter for integers, used in routes such as /runs/{name:int}. It replaces Starlette's own
    converter, which raises an exception for numbers with more than 4300 digits."""

    regex = "[0-9]{1,19}"


register_url_convertor("int", Digits())


def sender(request: Request) -> Sender:
    """Return the sender of a request, identified by the request's headers, client address and key
    permissions.

    If a header occurs several times, its first value is used.
    """
    scope = request.scope
    headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
    run, name, project = (
        None if value is None else value.decode("latin-1")
        for value in map(headers.get, (b"x-run-id", b"x-run-name", b"x-project-name"))
    )
    number = int(run) if run and run.isascii() and run.isdigit() else 0
    client, state = scope.get("client"), scope.get("state") or {}
    return Sender(
        run_id=0 if number >= 1 << 63 or state.get("no_run") else number,
        run_header=run,
        name=name,
        project=project,
        peer=client[0] if client else None,
        grant=state.get("grant", OWNER),
        process=_process(headers.get(b"x-harness-process")),
    )


def admit(request: Request, grant: Grant) -> None:
    """Store the permissions granted to the request, so that `sender` can return them."""
    request.scope.setdefault("state", {})["grant"] = grant


def admitted(request: Request) -> bool:
    """Return whether the request was admitted because of a valid API key or upload URL."""
    return "grant" in (request.scope.get("state") or {})


def without_run(request: Request) -> None:
    """Make `sender` return the run id 0 for a request that names a nonexistent run.

    With the nonexistent id, a run created later could get the same id and receive another job's rows.
    """
    request.scope["state"]["no_run"] = True


def _process(header: bytes | None) -> str | None:
    return header.decode("latin-1")[:100] if header else None


def store(request: Request) -> Store:
    opened: Store = request.app.state.store
    return opened


def failures(request: Request) -> Failures:
    """Return the counts of requests that the tracker could not serve."""
    requests: Failures = request.app.state.failures
    return requests


def refused(request: Request) -> Failures:
    """Return the counts of write requests that the tracker rejected, by sender."""
    requests: Failures = request.app.state.refused
    return requests


def hung_up(request: Request) -> Failures:
    """Return the counts of requests whose senders disconnected before the requests were complete."""
    requests: Failures = request.app.state.hung_up
    return requests


def base_url(request: Request) -> str:
    """Return the URL at which the client reaches this server: --public-url, or the request's base URL."""
    public: str = request.app.state.public_url
    return public or str(request.base_url).rstrip("/")


class Json(Response):
    """A JSON response. Like the JSON that Pluto's client writes, it can contain NaN and infinities."""

    media_type = "application/json"

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        super().init_headers(headers)
        self.raw_headers.append((b"x-content-type-options", b"nosniff"))

    def render(self, content: Any) -> bytes:
        # A lone surrogate stored by an older tracker cannot be encoded as UTF-8, so it is written as a JSON
        # escape.
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(
            errors="backslashreplace"
        )


def number(request: Request, name: str, default: int | None = None, maximum: int | None = None) -> int:
    """Return a query parameter as an integer, or `default` if the parameter is missing.

    A value above `maximum` is reduced to `maximum`. Raises Refused 400 if the value is negative or not an
    integer, or if the parameter is missing and has no default.
    """
    text = request.query_params.get(name)
    if text is None:
        if default is None:
            raise Refused(400, f"{name}: required")
        return default
    value = integer(text, name)
    if value < 0:
        raise Refused(400, f"{name}: must not be negative")
    return value if maximum is None else min(value, maximum)


def optional_number(request: Request, name: str) -> int | None:
    return number(request, name) if name in request.query_params else None


def text(request: Request, name: str) -> str:
    """Return a required query parameter. Raises Refused 400 if the parameter is missing or empty."""
    value = request.query_params.get(name)
    if not value:
        raise Refused(400, f"{name}: required")
    return value


def numbers(request: Request, name: str) -> list[int]:
    """Return the comma-separated integers in a query parameter, or [] if the parameter is missing."""
    return [integer(part.strip(), name) for part in request.query_params.get(name, "").split(",") if part]


def refusal(path: str, status: int, reason: str) -> Response:
    """Return an error response in the format of the Pluto service that serves `path`."""
    if path.startswith(("/ingest", "/files")):
        return Json({"code": status, "message": reason}, status)
    if status == 401:
        return Json({"error": "Unauthorized", "message": reason}, status)
    return Json({"error": reason}, status)
