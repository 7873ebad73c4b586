"""Sessions of the web interface, stored in a cookie after a login by key or by `harness tracker open`.

The cookie expires after 12 hours. It contains an HMAC and not the key. A session gives access only to the
pages, not to write requests and not to paths below /api.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from harness.tracker.shared.keys import grant_of

SECONDS = 12 * 3600
LINK_SECONDS = 600
LINKS_MOST = 100


@dataclass(frozen=True)
class Session:
    """The permissions of a user who has logged in."""

    project: str | None = None
    """The only accessible project. None means all projects."""

    def opens(self, project: str) -> bool:
        return self.project is None or self.project == project


class Links:
    """One-time secrets that open a session. They are stored only in memory, so a restart invalidates them."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def make(self) -> str:
        now = time.monotonic()
        self._until = {one: until for one, until in self._until.items() if until > now}
        while len(self._until) >= LINKS_MOST:
            self._until.pop(next(iter(self._until)))
        made = secrets.token_urlsafe(32)
        self._until[made] = now + LINK_SECONDS
        return made

    def take(self, secret: str) -> bool:
        """Return whether a secret is valid, and invalidate the secret."""
        return self._until.pop(secret, 0.0) > time.monotonic()


def by_key(given: str, key: str) -> Session | None:
    """Return the session for a key, or None for an invalid key."""
    grant = grant_of(given.strip().encode(), key.encode())
    return None if grant is None else Session(grant.project)


def of(request: Request) -> Session | None:
    """Return the session of a request's cookie, or None without a valid cookie."""
    key: str = request.app.state.key
    parts = request.cookies.get(_name(key), "").split(".")
    if len(parts) != 3 or not (parts[1].isascii() and parts[1].isdecimal() and len(parts[1]) < 12):
        return None
    made = hmac.compare_digest(parts[2].encode(), _seal(key, f"session/{parts[0]}/{parts[1]}").encode())
    if not made or int(parts[1]) < time.time():
        return None
    project = base64.urlsafe_b64decode(parts[0] + "=" * (-len(parts[0]) % 4)).decode()
    return Session(project.removeprefix("p") if project else None)


def give(request: Request, response: Response, session: Session) -> None:
    """Set a session's cookie in a response."""
    key: str = request.app.state.key
    text = "" if session.project is None else f"p{session.project}"
    project = base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()
    until = int(time.time()) + SECONDS
    value = f"{project}.{until}.{_seal(key, f'session/{project}/{until}')}"
    https = request.url.scheme == "https"
    response.set_cookie(_name(key), value, SECONDS, httponly=True, samesite="lax", secure=https)


def end(request: Request, response: Response) -> None:
    response.delete_cookie(_name(request.app.state.key), httponly=True, samesite="lax")


def from_here(request: Request) -> bool:
    """Return whether a form was sent by a page of this tracker. Without an Origin header, return True."""
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


def _name(key: str) -> str:
    """Return the cookie's name. It differs for each tracker, because all ports of a host share cookies."""
    return f"tracker_{_seal(key, 'cookie')[:8]}"


def _seal(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()
