"""Who may look at the pages: a cookie that a key or a link of `harness tracker open` gives, for some hours.

The cookie is a seal and not the key. It opens pages alone: no write, and nothing below /api.
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
    project: str | None = None
    """The only project that can be seen. None: all of them."""

    def opens(self, project: str) -> bool:
        return self.project is None or self.project == project


class Links:
    """Secrets that open a session once. They are in memory alone, so a new start forgets them."""

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
        """Return whether a secret is one of these, and forget it."""
        return self._until.pop(secret, 0.0) > time.monotonic()


def by_key(given: str, key: str) -> Session | None:
    """Return the session that a key opens, None for a wrong one."""
    grant = grant_of(given.strip().encode(), key.encode())
    return None if grant is None else Session(grant.project)


def of(request: Request) -> Session | None:
    """Return the session of a request's cookie, None without one that holds."""
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
    """Put a session's cookie on an answer."""
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
    """Return whether a form was sent by a page of this tracker, as far as the browser says."""
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


def _name(key: str) -> str:
    """Return the cookie's name. A host has one jar for all its ports, so each tracker has its own."""
    return f"tracker_{_seal(key, 'cookie')[:8]}"


def _seal(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()
