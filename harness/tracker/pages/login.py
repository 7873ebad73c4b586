"""Login and logout for the web interface: session checks, the login form, and one-time links."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs, quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from harness.tracker.api import request_bodies as body_limits
from harness.tracker.api.http import Json
from harness.tracker.pages import render, sessions, views
from harness.tracker.pages.sessions import Session
from harness.tracker.pages.throttle import Throttle
from harness.tracker.shared.keys import is_sealed
from harness.tracker.shared.requests import Refused

Handler = Callable[[Request, Session], Awaitable[Response]]
MAX_FORM_BYTES = 16 << 10


def guarded(handler: Handler, *, is_page: bool = True) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler that calls `handler` only for requests with a valid session.

    Without a session, a page (`is_page`) redirects to /login, and a data request is rejected with 401.
    """

    async def handle(request: Request) -> Response:
        session = sessions.current(request)
        if session is None:
            if not is_page:
                raise Refused(401, "log in again")
            target = quote(request.scope["path"])
            target += f"?{request.url.query}" if request.url.query else ""
            return RedirectResponse(f"/login?next={quote(target, safe='')}", 303, render.HEADERS)
        try:
            return await handler(request, session)
        except Refused as error:
            if not is_page:
                raise
            return render.page("error", error.status_code, status=error.status_code, reason=error.detail)

    return handle


async def login(request: Request) -> Response:
    """Return the login form, or log in with the secret from a one-time link."""
    if sessions.current(request) is not None:
        return _go(request)
    token = request.query_params.get("once")
    if token is not None:
        if request.app.state.links.redeem(token):
            response = _go(request)
            sessions.open_session(request, response, Session())
            return response
        reason = "This link has already been used or has expired. `harness tracker open` prints a new one."
        return render.page("login", 403, why=reason, next=_next(request))
    return render.page("login", why="", next=_next(request))


async def log_in(request: Request) -> Response:
    """Log in with the API key in the submitted form, and redirect to the requested page."""
    if not sessions.is_same_origin(request):
        return render.page("login", 403, why="This form was sent by another site.", next=views.HOME)
    async with body_limits.body(request, MAX_FORM_BYTES) as text:
        fields = parse_qs(text.decode(errors="replace"))
    submitted_key, throttle = fields.get("key", [""])[0], _throttle(request)
    address = request.client.host if request.client else ""
    is_guess = not is_sealed(submitted_key.strip().encode())
    if is_guess and (wait := throttle.wait(address)):
        reason = f"Too many attempts with a wrong key. Try again in {math.ceil(wait)} s, or use the link that"
        reason += " `harness tracker open` prints."
        page = render.page("login", 429, why=reason, next=_next(request))
        page.headers["Retry-After"] = f"{math.ceil(wait)}"
        return page
    session = sessions.by_key(submitted_key, request.app.state.key)
    if session is None:
        if is_guess:
            throttle.failed(address)
        reason = "This key gives no access to the pages. Use the tracker's own key or the key of a project."
        return render.page("login", 401, why=reason, next=_next(request))
    response = _go(request)
    sessions.open_session(request, response, session)
    return response


async def log_out(request: Request) -> Response:
    response = RedirectResponse("/login", 303, render.HEADERS)
    if sessions.is_same_origin(request):
        sessions.end(request, response)
    return response


async def make_link(request: Request) -> Response:
    """Return a one-time secret that opens a session. The request requires the tracker's own key."""
    return Json({"once": request.app.state.links.make(), "seconds": sessions.LINK_SECONDS})


def _throttle(request: Request) -> Throttle:
    throttle: Throttle = request.app.state.logins
    return throttle


def _next(request: Request) -> str:
    """Return the path to redirect to after the login. Only paths of this tracker's pages are allowed."""
    path = request.query_params.get("next", "")
    is_safe = path.startswith(f"{views.HOME}/") and "\\" not in path and path.isprintable()
    return path if is_safe else views.HOME


def _go(request: Request) -> Response:
    return RedirectResponse(quote(_next(request), safe="/?&=%~+,:;@!*'()"), 303, render.HEADERS)


routes = [
    Route("/login", login, methods=["GET"]),
    Route("/login", log_in, methods=["POST"]),
    Route("/logout", log_out, methods=["POST"]),
    Route("/api/pages/link", make_link, methods=["POST"]),
]
