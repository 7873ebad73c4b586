"""Who sent a request, its values, and how it is refused."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

from starlette.exceptions import HTTPException

RETRY_SECONDS = 2
WHOLE = re.compile(r"-?\d{1,19}", re.ASCII)


def now() -> str:
    """RFC 3339, UTC, microseconds. Its own: the tracker's image has no other package of the harness."""
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


class Busy(Refused):
    """Answers 429 with Retry-After, which Pluto's client honours."""

    def __init__(self, reason: str) -> None:
        super().__init__(429, reason)
        self.headers = {"Retry-After": str(RETRY_SECONDS)}


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
    only: str | None = None
    """The only project that the request's key opens. None: all of them."""
    process: str | None = None
    """X-Harness-Process: the process that the harness's recorder says the request is of."""


def integer(value: object, name: str) -> int:
    """Return a database integer. Raises Refused 400 otherwise."""
    if isinstance(value, str) and WHOLE.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
        raise Refused(400, f"{name}: expected an integer")
    return value


def loads(text: bytes | str, *, constants: bool = True) -> Any:
    """Parse JSON: the one door for every text that a client sends. NaN and infinities pass if `constants`.

    Raises ValueError, also for bytes that are not UTF-8, for half a surrogate pair, which no database and no
    answer could hold, and for numbers of thousands of digits.
    """
    whole = text.decode() if isinstance(text, bytes) else text  # json.loads itself lets surrogates in
    found = json.loads(whole) if constants else json.loads(whole, parse_constant=_no_constant)
    if "\\u" in whole or not isinstance(text, bytes):
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
