"""Sessions of the web interface, opened by a key or by `harness tracker open`, and kept in memory.

The browser's cookie contains a random id instead of the key. A session ends after 12 hours, at logout, or
when the tracker restarts. It gives access to the pages, but not to write requests or to paths under /api.
"""

from __future__ import annotations

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
MAX_LINKS = 100
MAX_SESSIONS = 100
"""The maximum number of sessions with the same permissions. Opening another session ends the oldest one."""


@dataclass(frozen=True)
class Session:
    """The permissions of a user who has logged in."""

    project: str | None = None
    """The only accessible project. None means all projects."""

    def opens(self, project: str) -> bool:
        return self.project is None or self.project == project


class Sessions:
    """The open sessions, keyed by a digest of the session id."""

    def __init__(self) -> None:
        self._open: dict[bytes, tuple[Session, float]] = {}

    def make(self, session: Session) -> str:
        """Open a session and return its id."""
        now = time.monotonic()
        self._open = {
            one: (opened, expires_at) for one, (opened, expires_at) in self._open.items() if expires_at > now
        }
        matching = [one for one, (opened, _) in self._open.items() if opened == session]
        for oldest in matching[: max(0, len(matching) - MAX_SESSIONS + 1)]:
            del self._open[oldest]
        session_id = secrets.token_urlsafe(32)
        self._open[_digest(session_id)] = session, now + SECONDS
        return session_id

    def find(self, session_id: str) -> Session | None:
        session, expires_at = self._open.get(_digest(session_id), (None, 0.0))
        return session if expires_at > time.monotonic() else None

    def end(self, session_id: str) -> None:
        self._open.pop(_digest(session_id), None)


class Links:
    """One-time secrets that open a session. The secrets are stored only in memory, so a restart invalidates
    them."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def make(self) -> str:
        now = time.monotonic()
        self._until = {one: expires_at for one, expires_at in self._until.items() if expires_at > now}
        while len(self._until) >= MAX_LINKS:
            self._until.pop(next(iter(self._until)))
        secret = secrets.token_urlsafe(32)
        self._until[secret] = now + LINK_SECONDS
        return secret

    def redeem(self, secret: str) -> bool:
        """Invalidate a one-time secret, and return whether it was valid."""
        return self._until.pop(secret, 0.0) > time.monotonic()


def by_key(submitted_key: str, key: str) -> Session | None:
    """Return the session for a key, or None for a key that gives no access to the pages.

    A launch key does not give access, because it is in every rank's environment.
    """
    grant = grant_of(submitted_key.strip().encode(), key.encode())
    return None if grant is None or grant.launch is not None else Session(grant.project)


def current(request: Request) -> Session | None:
    """Return the session that a request's cookie identifies, or None if there is no valid cookie."""
    return _sessions(request).find(request.cookies.get(_name(request), ""))


def open_session(request: Request, response: Response, session: Session) -> None:
    """Open a session and set its cookie in a response. The earlier session of the same browser ends."""
    _sessions(request).end(request.cookies.get(_name(request), ""))
    session_id, secure = _sessions(request).make(session), _secure(request)
    response.set_cookie(_name(request), session_id, SECONDS, httponly=True, samesite="lax", secure=secure)


def end(request: Request, response: Response) -> None:
    """End the session that a request's cookie identifies, and delete the cookie."""
    name = _name(request)
    _sessions(request).end(request.cookies.get(name, ""))
    response.delete_cookie(name, httponly=True, samesite="lax", secure=_secure(request))


def is_same_origin(request: Request) -> bool:
    """Return whether a form was sent from one of this tracker's pages, according to the request's headers.

    Sec-Fetch-Site and Origin are checked if they are present. A proxy can change the Host header, so the
    origin of --public-url is accepted too.
    """
    if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        return False
    origin = request.headers.get("origin")
    hosts = {request.headers.get("host"), urlsplit(request.app.state.public_url).netloc or None}
    return origin is None or urlsplit(origin).netloc in hosts - {None}


def _sessions(request: Request) -> Sessions:
    sessions: Sessions = request.app.state.sessions
    return sessions


def _secure(request: Request) -> bool:
    """Return whether the browser connects with TLS to a proxy in front of the tracker.

    X-Forwarded-Proto is accepted from any sender, because a false value affects only the sender's own cookie.
    """
    forwarded = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    return request.app.state.public_url.startswith("https://") or "https" in {request.url.scheme, forwarded}


def _name(request: Request) -> str:
    """Return the name of the session cookie.

    The name differs for each tracker, because all ports of a host share cookies.

    With TLS, the name's prefix makes browsers reject a cookie set by another host or over plain HTTP.
    """
    key: str = request.app.state.key
    name = f"tracker_{hmac.new(key.encode(), b'cookie', hashlib.sha256).hexdigest()[:8]}"
    return f"__Host-{name}" if _secure(request) else name


def _digest(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode()).digest()
