"""GET /api/audit/…: the audit view, for the readers in audit.py."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from harness.tracker import audit_view, http
from harness.tracker.http import Json, number, numbers


async def runs(request: Request) -> Response:
    query = request.query_params
    wanted = query.get("externalId"), query.get("projectName"), query.get("jobName")
    found = await http.store(request).read(lambda db: audit_view.runs(db, *wanted))
    orphans = await http.store(request).read(lambda db: audit_view.orphans(db, wanted[1]))
    return Json({"runs": found, "orphans": orphans})


async def attachments(request: Request) -> Response:
    ids = numbers(request, "runIds")
    return Json({"attachments": await http.store(request).read(lambda db: audit_view.attachments(db, ids))})


async def points(request: Request) -> Response:
    ids, after = numbers(request, "runIds"), number(request, "after", 0)
    limit = max(1, number(request, "limit", 10000, 50000))
    rows, following = await http.store(request).read(lambda db: audit_view.points(db, ids, after, limit))
    return Json({"columns": audit_view.COLUMNS, "points": rows, "next": following})


async def failures(request: Request) -> Response:
    return Json({"failures": http.failures(request).all()})


routes = [
    Route("/api/audit/failures", failures),
    Route("/api/audit/runs", runs),
    Route("/api/audit/attachments", attachments),
    Route("/api/audit/points", points),
]
