"""GET /pages/…: the requests that the pages' script sends for curves, changes and log lines."""

from __future__ import annotations

import sqlite3

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from harness.tracker.api import http
from harness.tracker.api.http import Json
from harness.tracker.pages import log_queries, rank_queries, views
from harness.tracker.pages.login import guarded
from harness.tracker.pages.sessions import Session
from harness.tracker.query import curves, lineage, run_queries
from harness.tracker.shared.requests import Refused, integer

MAX_SERIES = 64
BUCKETS = 300
NO_STORE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


async def curve_data(request: Request, session: Session) -> Response:
    """Return `{"series": […]}` with a curve for each `series=RUN:NAME` parameter, in the same order.

    With `axis=time`, the curves contain client times in milliseconds instead of steps. With `fit`, a few
    points that are far from all others are omitted.
    """
    requested = [one.partition(":") for one in request.query_params.getlist("series")]
    if not 1 <= len(requested) <= MAX_SERIES:
        raise Refused(400, f"series: expected 1 to {MAX_SERIES} values RUN:NAME")
    pairs = [(integer(run, "series"), name) for run, _, name in requested]
    buckets = http.number(request, "buckets", BUCKETS, curves.MAX_BUCKETS)
    first, until = http.number(request, "first", 0), http.optional_number(request, "last")
    by_time, fit = request.query_params.get("axis") == "time", "fit" in request.query_params

    def read(db: sqlite3.Connection) -> Response:
        results = []
        for number, name in pairs:
            _accessible_run(db, session, number)
            curve = curves.curve(db, number, name, buckets, first, until, lineage.deduplicated, by_time, fit)
            rows = [[b.first, b.last, b.low, b.high, b.mean, b.odd] for b in curve.buckets]
            results.append(
                {
                    "run": number,
                    "name": name,
                    "points": curve.points,
                    "exact": curve.exact,
                    "buckets": rows,
                    "older": curve.older,
                    "far": curve.far,
                }
            )
        return Json({"series": results})

    return _private(await http.store(request).scan(read))


async def pulse_data(request: Request, session: Session) -> Response:
    ids = http.numbers(request, "runs")[: views.MAX_COMPARED]

    def read(db: sqlite3.Connection) -> Response:
        return Json({"runs": [rank_queries.pulse(db, _accessible_run(db, session, one)) for one in ids]})

    return _private(await http.store(request).read(read))


async def log_data(request: Request, session: Session) -> Response:
    query, run_id = request.query_params, http.number(request, "run")
    filters = {one: query.get(one, "") for one in ("sender", "kind", "search")}
    after = http.number(request, "after", 0)

    def read(db: sqlite3.Connection) -> Response:
        _accessible_run(db, session, run_id)
        return Json(log_queries.lines(db, run_id, **filters, before=None, after=after))

    return _private(await http.store(request).scan(read))


def _accessible_run(db: sqlite3.Connection, session: Session, run_id: int) -> sqlite3.Row:
    """Return the requested run.

    Raises Refused 404 if the run does not exist or the session cannot access it.
    """
    row = run_queries.run(db, run_id)
    if not session.opens(row["project"]):
        raise Refused(404, "Run not found")
    return row


def _private(response: Response) -> Response:
    response.headers.update(NO_STORE)
    return response


routes = [
    Route("/pages/curves", guarded(curve_data, is_page=False)),
    Route("/pages/pulse", guarded(pulse_data, is_page=False)),
    Route("/pages/logs", guarded(log_data, is_page=False)),
]
