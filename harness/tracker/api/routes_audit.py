"""Routes under /api/audit/: the audit view that tracker/client/audit.py reads, claims on run ids, and digest
reports."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from harness.tracker.api import http
from harness.tracker.api import request_bodies as body_limits
from harness.tracker.api.http import Json, number, numbers
from harness.tracker.query import audit_view
from harness.tracker.shared import run_fields
from harness.tracker.shared.requests import Refused
from harness.tracker.storage import claims
from harness.tracker.storage import digest_reports as reports

FEATURES = ("writers", "columns", "processes", "sealedKeys", "digests")
"""The names of the features that this tracker reports in its response to GET /api/audit/runs. Clients also
support earlier versions of the tracker, and use these names to tell which features are available."""


async def runs(request: Request) -> Response:
    query = request.query_params
    filters = query.get("externalId"), query.get("projectName"), query.get("jobName")
    rows = await http.store(request).read(lambda db: audit_view.runs(db, *filters))
    orphans = await http.store(request).read(lambda db: audit_view.orphans(db, filters[1]))
    return Json({"runs": rows, "orphans": orphans, **dict.fromkeys(FEATURES, True)})


async def attachments(request: Request) -> Response:
    ids = numbers(request, "runIds")
    return Json({"attachments": await http.store(request).read(lambda db: audit_view.attachments(db, ids))})


async def points(request: Request) -> Response:
    ids, after = numbers(request, "runIds"), number(request, "after", 0)
    if not ids:
        raise Refused(400, "runIds: required")
    limit = max(1, number(request, "limit", 10000, 50000))
    rows, following = await http.store(request).scan(lambda db: audit_view.points(db, ids, after, limit))
    return Json({"columns": audit_view.COLUMNS, "points": rows, "next": following})


async def columns(request: Request) -> Response:
    """Return the same raw rows as `points`, but as packed columns, which takes a tenth of the time."""
    ids, after = numbers(request, "runIds"), number(request, "after", 0)
    if not ids:
        raise Refused(400, "runIds: required")
    limit = max(1, number(request, "limit", 100_000, 500_000))
    packed_blocks, following = await http.store(request).scan(
        lambda db: audit_view.columns(db, ids, after, limit)
    )
    return Json({"blocks": packed_blocks, "next": following})


async def writers(request: Request) -> Response:
    ids = numbers(request, "runIds")
    return Json({"writers": await http.store(request).read(lambda db: claims.writers(db, ids))})


async def claim(request: Request) -> Response:
    body = await body_limits.fields(request)
    project, external_id, launch = (
        run_fields.string(body, name) for name in ("projectName", "externalId", "launch")
    )
    shared = bool(body.get("shared"))
    return Json(
        await http.store(request).write(lambda db: claims.claim(db, project, external_id, launch, shared))
    )


async def release(request: Request) -> Response:
    launch = run_fields.string(await body_limits.fields(request), "launch")
    await http.store(request).write(lambda db: claims.release(db, launch))
    return Json({"success": True})


async def digests(request: Request) -> Response:
    """Return the digest reports about the runs in the `runIds` query parameter.

    The reports are in the order in which they were stored.
    """
    ids, after = numbers(request, "runIds"), number(request, "after", 0)
    limit = max(1, number(request, "limit", 1000, 10_000))
    entries, following = await http.store(request).scan(lambda db: reports.read(db, ids, after, limit))
    return Json({"reports": entries, "next": following})


async def report_digests(request: Request) -> Response:
    """Store a process's digest report, and return the number of stored reports from this process.

    A stored report cannot be replaced. A report without entries is not stored. Clients send such a report to
    find out whether the tracker has this route.
    """
    sender = http.sender(request)
    async with body_limits.body(request, reports.MAX_REPORT_BYTES) as text:
        report = reports.parsed(text)
        count = await http.store(request).write(lambda db: reports.append(db, sender, report))
    return Json({"reports": count})


async def failures(request: Request) -> Response:
    state = {"failures": http.failures, "refused": http.refused, "hungUp": http.hung_up}
    return Json({name: of(request).all() for name, of in state.items()})


routes = [
    Route("/api/audit/failures", failures),
    Route("/api/audit/runs", runs),
    Route("/api/audit/attachments", attachments),
    Route("/api/audit/points", points),
    Route("/api/audit/columns", columns),
    Route("/api/audit/writers", writers),
    Route("/api/audit/digests", digests),
    Route("/api/audit/digests", report_digests, methods=["POST"]),
    Route("/api/audit/claims", claim, methods=["POST"]),
    Route("/api/audit/claims/release", release, methods=["POST"]),
]
