"""Check which requests a project's key permits. All other requests are rejected.

Read requests and ingest requests are checked by path, query and headers, before the route runs. If a request
has a run in its body, it is checked when the run is looked up (runs.find), in the transaction that writes it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from starlette.requests import Request

from harness.tracker.api import http
from harness.tracker.shared.requests import Refused, integer

READS = frozenset(
    f"/api/runs/{name}"
    for name in (
        *("list", "metric-names", "metrics", "metrics/raw", "statistics", "compare", "leaderboard", "files"),
        *("logs", "data", "alerts", "modelGraphs", "status/history", "auth/validate", "projects"),
    )
)
BY_PROJECT = frozenset({"/api/runs/list", "/api/runs/metric-names", "/api/runs/leaderboard"})
"""Read requests that name no run, so they must name the project."""
BY_NOTHING = frozenset({"/api/runs/auth/validate", "/api/runs/projects"})
ROWS = ("/ingest/metrics", "/ingest/logs", "/ingest/data", "/files")
JUDGED_LATER = frozenset(
    f"/api/runs/{name}"
    for name in (
        *("create", "resume", "logName/add", "trigger", "status/update", "tags/update", "config/update"),
        *("notes/update", "alert", "modelGraph/create"),
    )
) | {"/api/slug"}
DETAILS = "/api/runs/details/"
BY_DISPLAY_ID = f"{DETAILS}by-display-id/"


async def check(request: Request, project: str) -> None:
    """Check a request with a project's key.

    Raises Refused 403 if the key does not permit the request, and 404 for runs of other projects, as if these
    runs did not exist.
    """
    named = request.query_params.getlist("projectName")
    named += [one for one in [request.headers.get("x-project-name")] if one]
    if any(one != project for one in named):
        raise Refused(403, f"this key only gives access to project {project}")
    runs = _runs(request, bool(named))
    if runs and not await http.store(request).read(lambda db: _all_of(db, project, runs)):
        raise Refused(404, "Run not found")


def _runs(request: Request, named: bool) -> Sequence[int]:
    """Return the runs that a request names. Raises Refused 403 if the key does not permit the request."""
    path, query = request.scope["path"], request.query_params
    if request.method == "POST" and path in JUDGED_LATER:
        return []
    if request.method == "POST" and path in ROWS:
        return [integer(request.headers.get("x-run-id"), "X-Run-Id")]
    if request.method in {"GET", "HEAD"}:
        if path.startswith(BY_DISPLAY_ID) and named:
            return []
        if (
            path.startswith("/api/runs/")
            and path.removeprefix("/api/runs/").removeprefix("details/").isdecimal()
        ):
            return [integer(path.rpartition("/")[2], "runId")]
        if path in READS:
            runs = [
                *http.numbers(request, "runIds"),
                *(integer(v, "runId") for v in query.getlist("runId")),
            ]
            if runs or path in BY_NOTHING or (path in BY_PROJECT and named):
                return runs
            raise Refused(403, "with the key of a project, a request must name projectName or the run")
    raise Refused(403, "the key of a project does not permit this request; use the tracker's own key")


def _all_of(db: sqlite3.Connection, project: str, runs: Sequence[int]) -> bool:
    query = "SELECT project FROM runs WHERE id = ?"
    rows = [db.execute(query, (run,)).fetchone() for run in set(runs)]
    return all(row is not None and row["project"] == project for row in rows)
