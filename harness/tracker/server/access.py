"""The credentials that each route accepts, and API key authentication.

ACCESS must contain every route of the application, because `admitted` fails for any other route. A project
key gives access to that project, and a launch key to the launch's runs (shared/run_access.py). Requests that
name a run in their body are checked when the run is looked up, in the transaction that writes it.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, Flag, auto

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from harness.tracker.api import http
from harness.tracker.shared.keys import Grant, grant_of
from harness.tracker.shared.requests import Refused, integer
from harness.tracker.shared.run_access import opens

CACHED = 1024
"""The maximum number of keys whose permissions are cached, and the maximum number of (permissions, run) pairs
whose access is cached."""


class Who(Flag):
    """The credentials that a route accepts."""

    OWNER = auto()
    """The tracker's own key."""
    PROJECT = auto()
    """The key of a project."""
    LAUNCH = auto()
    """The key of a launch."""
    SESSION = auto()
    """The cookie of a session. Checked by pages/login.py."""
    READ_LINK = auto()
    """A download URL. Checked by api/routes_files.py."""
    UPLOAD_LINK = auto()
    """An upload URL. Checked by api/routes_files.py."""
    ANYBODY = auto()
    """No credential is needed."""


class Scope(Enum):
    """The part of a request that names the data to access."""

    NOTHING = "nothing"
    """The response contains no run data, or the route selects the data by the key's permissions."""
    BODY = "the body"
    """The request body names the run. Access is checked when the run is looked up (storage/runs.py)."""
    PATH = "the path"
    RUN_ID = "runId"
    RUN_IDS = "runIds"
    PROJECT = "projectName"
    """The request has a query parameter with the name of the project."""
    SENDER = "X-Run-Id"
    """The request has the header X-Run-Id, which clients send with rows and files."""


@dataclass(frozen=True)
class Access:
    """The credentials that a route accepts, and where its requests name the data."""

    who: Who
    scope: Scope = Scope.NOTHING


KEYS = Who.OWNER | Who.PROJECT | Who.LAUNCH
METRICS = "POST /ingest/metrics"
_OPEN, _PAGE, _OWNER = Access(Who.ANYBODY), Access(Who.SESSION), Access(Who.OWNER)
_ANY_KEY, _WRITE, _ROWS = Access(KEYS), Access(KEYS, Scope.BODY), Access(KEYS, Scope.SENDER)
_RUN, _RUNS = Access(KEYS, Scope.RUN_ID), Access(KEYS, Scope.RUN_IDS)
_RUN_IN_PATH = Access(KEYS, Scope.PATH)
_PROJECT = Access(Who.OWNER | Who.PROJECT, Scope.PROJECT)
_HOME = "/o/harness/projects"
ACCESS = {
    "GET /": _OPEN,
    "GET /healthz": _OPEN,
    "GET /openapi.json": _OPEN,
    "GET /login": _OPEN,
    "POST /login": _OPEN,
    "POST /logout": _OPEN,
    "GET /pages/static/{name}": _OPEN,
    "GET /pages/curves": _PAGE,
    "GET /pages/pulse": _PAGE,
    "GET /pages/logs": _PAGE,
    f"GET {_HOME}": _PAGE,
    f"GET {_HOME}/{{project:path}}": _PAGE,
    f"GET {_HOME}/{{project:path}}/r{{run_id:int}}": _PAGE,
    f"GET {_HOME}/{{project:path}}/r{{run_id:int}}/{{tab}}": _PAGE,
    "GET /files/get/{token}/{until}/{seal}": Access(Who.READ_LINK),
    "PUT /files/put/{token}/{until}/{seal}": Access(Who.UPLOAD_LINK),
    METRICS: _ROWS,
    "POST /ingest/logs": _ROWS,
    "POST /ingest/data": _ROWS,
    "POST /files": _ROWS,
    "POST /api/audit/digests": _ROWS,
    "POST /api/slug": _ANY_KEY,
    "GET /api/runs/auth/validate": _ANY_KEY,
    "GET /api/runs/projects": _ANY_KEY,
    "POST /api/runs/create": _WRITE,
    "POST /api/runs/resume": _WRITE,
    "POST /api/runs/logName/add": _WRITE,
    "POST /api/runs/trigger": _WRITE,
    "POST /api/runs/status/update": _WRITE,
    "POST /api/runs/tags/update": _WRITE,
    "POST /api/runs/config/update": _WRITE,
    "POST /api/runs/notes/update": _WRITE,
    "POST /api/runs/alert": _WRITE,
    "POST /api/runs/modelGraph/create": _WRITE,
    "GET /api/runs/details/{run_id}": _RUN_IN_PATH,
    "GET /api/runs/{run_id:int}": _RUN_IN_PATH,
    "GET /api/runs/details/by-display-id/{display_id}": _ANY_KEY,
    "GET /api/runs/status/history": _RUN,
    "GET /api/runs/metrics": _RUN,
    "GET /api/runs/metrics/raw": _RUN,
    "GET /api/runs/statistics": _RUN,
    "GET /api/runs/files": _RUN,
    "GET /api/runs/logs": _RUN,
    "GET /api/runs/data": _RUN,
    "GET /api/runs/alerts": _RUN,
    "GET /api/runs/modelGraphs": _RUN,
    "GET /api/runs/compare": _RUNS,
    "GET /api/runs/metric-names": _RUNS,
    "GET /api/runs/list": _PROJECT,
    "GET /api/runs/leaderboard": _PROJECT,
    "GET /api/audit/runs": _OWNER,
    "GET /api/audit/attachments": _OWNER,
    "GET /api/audit/points": _OWNER,
    "GET /api/audit/columns": _OWNER,
    "GET /api/audit/writers": _OWNER,
    "GET /api/audit/failures": _OWNER,
    "GET /api/audit/digests": _OWNER,
    "POST /api/audit/claims": _OWNER,
    "POST /api/audit/claims/release": _OWNER,
    "POST /api/pages/link": _OWNER,
}
"""Maps "METHOD PATH" of each route to its access rule. HEAD has the same rule as GET."""


class Keyring:
    """Checks API keys, and caches the permissions of accepted keys, because every request carries a key."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()
        self._grants: dict[bytes, Grant] = {}
        self._opened: set[tuple[Grant, int]] = set()

    def grant(self, key: bytes) -> Grant | None:
        """Return the permissions of a key, or None if this tracker does not accept the key."""
        grant = self._grants.get(key)
        if grant is None:
            grant = grant_of(key, self._key)
            if grant is not None:
                if len(self._grants) >= CACHED:
                    self._grants.clear()
                self._grants[key] = grant
        return grant

    async def opens(self, request: Request, grant: Grant, runs: Iterable[int]) -> bool:
        """Return whether all these runs exist and the key can access them.

        A positive result is cached, because a run's project, id and creator never change.
        """
        unknown = {run for run in runs if (grant, run) not in self._opened}
        if not unknown:
            return True

        def read(db: sqlite3.Connection) -> bool:
            query = "SELECT id, project, external_id FROM runs WHERE id = ?"
            rows = [db.execute(query, (run,)).fetchone() for run in unknown]
            return all(row is not None and opens(db, grant, row) for row in rows)

        if not await http.store(request).read(read):
            return False
        if len(self._opened) + len(unknown) > CACHED:
            self._opened.clear()
        self._opened |= {(grant, run) for run in unknown}
        return True


def admitted(route: Route) -> Route:
    """Wrap a route so that it checks each request against ACCESS.

    Raises KeyError if ACCESS lacks the route.
    """
    endpoint = route.endpoint
    methods = (route.methods or set()) - {"HEAD"}
    access = {method: ACCESS[f"{method} {route.path}"] for method in methods}

    @functools.wraps(endpoint)
    async def handle(request: Request) -> Response:
        await admit(request, access["GET" if request.method == "HEAD" else request.method])
        response: Response = await endpoint(request)
        return response

    return Route(route.path, handle, methods=sorted(methods), name=route.name)


async def admit(request: Request, access: Access) -> None:
    """Store the permissions of the request's key in the request's state.

    Raises Refused 401 if there is no valid key, 403 if the key does not permit the request, and 404 for runs
    that the key cannot access, as if these runs did not exist. Other credentials are checked by the route.
    """
    if not access.who & KEYS:
        return
    keyring: Keyring = request.app.state.keyring
    grant = _grant(request, keyring)
    http.admit(request, grant)
    if grant.project is None:
        return
    if (Who.PROJECT if grant.launch is None else Who.LAUNCH) not in access.who:
        raise Refused(403, "this key does not permit this request; use the tracker's own key")
    projects = request.query_params.getlist("projectName")
    projects += [one for one in [request.headers.get("x-project-name")] if one]
    if any(one != grant.project for one in projects):
        raise Refused(403, f"this key only gives access to project {grant.project}")
    runs = _runs(request, access.scope, grant, bool(projects))
    if await keyring.opens(request, grant, runs):
        return
    if access.scope is Scope.SENDER and grant.launch is not None and not await _exists(request, runs):
        http.without_run(request)
        return
    raise Refused(404, "Run not found")


def _grant(request: Request, keyring: Keyring) -> Grant:
    """Return the permissions of the request's key, read from `Authorization: Bearer KEY` or `X-Api-Key`.

    Requests through the Kubernetes API server's proxy use X-Api-Key, because the proxy removes Authorization.
    """
    headers: dict[bytes, bytes] = dict(request.scope["headers"])
    bearer = headers.get(b"authorization", b"")
    keys = [bearer[7:] if bearer[:7].lower() == b"bearer " else b"", headers.get(b"x-api-key", b"")]
    for one in keys:
        if one and (grant := keyring.grant(one.strip())) is not None:
            return grant
    raise Refused(401, "Invalid API key" if any(keys) else "Missing API key")


def _runs(request: Request, scope: Scope, grant: Grant, names_project: bool) -> list[int]:
    """Return the ids of the runs that a request names.

    Raises Refused 400 or 403 if a required run or project is missing.
    """
    query = request.query_params
    if scope is Scope.PATH:
        return [integer(request.path_params["run_id"], "runId")]
    if scope is Scope.SENDER:
        if grant.launch is None:
            return [integer(request.headers.get("x-run-id"), "X-Run-Id")]
        number = http.sender(request).run_id
        return [number] if number else []
    if scope is Scope.RUN_ID:
        runs = [integer(value, "runId") for value in query.getlist("runId")]
    elif scope is Scope.RUN_IDS:
        runs = [
            integer(part.strip(), "runIds")
            for value in query.getlist("runIds")
            for part in value.split(",")
            if part
        ]
    else:
        runs = []
    by_project = scope is Scope.PROJECT or (scope is Scope.RUN_IDS and grant.launch is None)
    if scope in {Scope.NOTHING, Scope.BODY} or runs or (by_project and names_project):
        return runs
    missing = "projectName" if scope is Scope.PROJECT else "the run"
    raise Refused(403, f"with this key, a request must name {missing}")


async def _exists(request: Request, runs: list[int]) -> bool:
    query = "SELECT 1 FROM runs WHERE id = ?"

    def read(db: sqlite3.Connection) -> bool:
        return any(db.execute(query, (run,)).fetchone() for run in runs)

    return await http.store(request).read(read)
