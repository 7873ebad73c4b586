"""The sender of a request, parsers for values in a request, and exceptions that reject a request."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

from starlette.exceptions import HTTPException

from harness.tracker.shared.keys import OWNER, Grant

RETRY_SECONDS = 2
WHOLE = re.compile(r"-?\d{1,19}", re.ASCII)


def now() -> str:
    """Return the current time in RFC 3339 format, in UTC with microseconds.

    harness.core.clock is not used, because the tracker's image does not contain it.
    """
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def from_ms(time_ms: int) -> str:
    """Format a client time, given in milliseconds, in the same way as Pluto.

    A time that datetime cannot represent is returned as a number.
    """
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Refused(HTTPException):
    """Raised to reject a request.

    The server responds with the exception's status code, in Pluto's error format.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)


class Busy(Refused):
    """Raised if the server is busy. The response is 429 with Retry-After, which Pluto's client honours."""

    def __init__(self, reason: str) -> None:
        super().__init__(429, reason)
        self.headers = {"Retry-After": str(RETRY_SECONDS)}


@dataclass(frozen=True)
class Sender:
    """The sender of a request, identified by the request headers and the client address."""

    run_id: int
    """The run id in the X-Run-Id header. As in Pluto's ingest service, the id is 0 if the header is not a
    number."""
    run_header: str | None
    name: str | None
    project: str | None
    peer: str | None
    grant: Grant = OWNER
    """The permissions of the API key in the request."""
    process: str | None = None
    """The value of the X-Harness-Process header, in which the harness's recorder sends the id of its
    process."""

    @property
    def launch(self) -> str | None:
        """The launch for which the request's key was created. None for all other keys."""
        return self.grant.launch


def integer(value: object, name: str) -> int:
    """Return the value as an integer of at most 64 bits. Raises Refused 400 for any other value."""
    if isinstance(value, str) and WHOLE.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
        raise Refused(400, f"{name}: expected an integer")
    return value


def loads(text: bytes | str, *, constants: bool = True) -> Any:
    """Parse JSON from a client. NaN and infinities are accepted if `constants` is true.

    Raises ValueError for invalid JSON, bytes that are not UTF-8, and numbers with thousands of digits. A lone
    surrogate is invalid too, because neither the database nor a response can contain it.
    """
    # Bytes are decoded here, because json.loads would accept surrogates in bytes.
    content = text.decode() if isinstance(text, bytes) else text
    value = json.loads(content) if constants else json.loads(content, parse_constant=_no_constant)
    if "\\u" in content or not isinstance(text, bytes):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")
