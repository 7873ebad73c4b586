"""GET /api/runs/…: the read requests of `pluto.query`, and other read requests of Pluto's API."""

from __future__ import annotations

import re
import sqlite3

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from harness.tracker.api import http
from harness.tracker.api.http import Json, number, optional_number, text
from harness.tracker.api.routes_runs import ORGANIZATION, run_url
from harness.tracker.query import lineage, run_filter, run_lists, run_queries, series
from harness.tracker.shared import display_ids, signed_links
from harness.tracker.shared.requests import Refused, integer

DISPLAY_ID = re.compile(r"[A-Za-z0-9]+-\d+")


async def projects(request: Request) -> Response:
    granted_project = http.sender(request).grant.project
    rows = await http.store(request).read(run_queries.projects)
    return Json({"projects": [one for one in rows if granted_project in {None, one["name"]}]})


async def runs(request: Request) -> Response:
    query = request.query_params
    listing = run_lists.Listing(
        project=text(request, "projectName"),
        search=query.get("search"),
        tags=[tag for tag in query.get("tags", "").split(",") if tag],
        sort=query.get("sort", "-createdAt"),
        limit=number(request, "limit", 50, 200),
        offset=number(request, "offset", 0),
        filter=run_filter.read(query["filter"]) if "filter" in query else None,
    )
    rows, total = await http.store(request).scan(lambda db: run_lists.runs(db, listing))
    base = http.base_url(request)
    return Json({"runs": [{**one, "url": run_url(base, one)} for one in rows], "total": total})


async def details(request: Request) -> Response:
    run_id = integer(request.path_params["run_id"], "runId")
    return Json(
        await http.store(request).read(lambda db: run_queries.details(db, run_queries.run(db, run_id)))
    )


async def details_by_display_id(request: Request) -> Response:
    display_id, project = request.path_params["display_id"], request.query_params.get("projectName")
    if not DISPLAY_ID.fullmatch(display_id):
        raise Refused(400, "Invalid display ID format. Expected PREFIX-NUMBER")
    grant = http.sender(request).grant

    def read(db: sqlite3.Connection) -> run_queries.Found:
        return run_queries.details(
            db, run_queries.run(db, display_ids.find(db, display_id, project, grant)["id"])
        )

    return Json(await http.store(request).read(read))


async def alerts(request: Request) -> Response:
    return await _notes(request, "alert", "alerts")


async def model_graphs(request: Request) -> Response:
    return await _notes(request, "graph", "graphs")


async def _notes(request: Request, kind: str, name: str) -> Response:
    run_id = number(request, "runId")
    notes = await http.store(request).read(
        lambda db: run_queries.notes(db, run_queries.run(db, run_id)["id"], kind)
    )
    contents = [{**one["content"], "receivedAt": one["receivedAt"]} for one in notes]
    return Json({"runId": run_id, name: contents})


async def data(request: Request) -> Response:
    """Return a page of a run's histograms, tables, graphs and strings.

    The `data` field contains the string that the client sent.
    """
    run_id, kind = number(request, "runId"), request.query_params.get("dataType")
    page = number(request, "limit", 1000, 10000), number(request, "offset", 0)
    name = _name(request)
    rows, total = await http.store(request).read(lambda db: run_queries.data(db, run_id, name, kind, *page))
    return Json({"data": rows, "total": total})


async def status_history(request: Request) -> Response:
    run_id = number(request, "runId")
    events = await http.store(request).read(
        lambda db: run_queries.status_events(db, run_queries.run(db, run_id)["id"], applied_only=True)
    )
    return Json({"runId": run_id, "events": events})


async def metric_names(request: Request) -> Response:
    project, ids = text(request, "projectName"), http.numbers(request, "runIds")
    search, limit = request.query_params.get("search", ""), number(request, "limit", 500, 500)
    names = await http.store(request).scan(lambda db: series.names(db, project, ids, search, limit))
    return Json({"projectName": project, "metricNames": names})


async def metrics(request: Request) -> Response:
    text(request, "projectName")
    run_id, limit, name = number(request, "runId"), number(request, "limit", 2000, 10000), _name(request)
    window = optional_number(request, "stepMin"), optional_number(request, "stepMax")
    points = await http.store(request).scan(
        lambda db: lineage.points(db, run_id, name, max(1, limit), *window)
    )
    return Json({"metrics": points})


async def metrics_raw(request: Request) -> Response:
    text(request, "projectName")
    run_id, limit, name = (
        number(request, "runId"),
        number(request, "limit", 50000, 50000),
        text(request, "logName"),
    )
    window = optional_number(request, "stepMin"), optional_number(request, "stepMax")
    rows, truncated = await http.store(request).scan(lambda db: series.raw(db, run_id, name, limit, *window))
    return Json({"metrics": rows, "truncated": truncated})


async def statistics(request: Request) -> Response:
    project, run_id, name = text(request, "projectName"), number(request, "runId"), _name(request)

    def read(db: sqlite3.Connection) -> Response:
        row = run_queries.run(db, run_id)
        names = series.of_run(db, run_id) if name is None else [name]
        results = [one for one in (series.statistics(db, run_id, each) for each in names) if one is not None]
        return Json(
            {
                "runId": run_id,
                "runName": row["name"],
                "projectName": project,
                "url": run_url(base, row),
                "metrics": results,
            }
        )

    base = http.base_url(request)
    return await http.store(request).scan(read)


async def compare(request: Request) -> Response:
    project, name, ids = (
        text(request, "projectName"),
        text(request, "logName"),
        http.numbers(request, "runIds"),
    )
    base = http.base_url(request)

    def read(db: sqlite3.Connection) -> list[run_queries.Found]:
        results = []
        for row in (run_queries.run(db, one) for one in ids[:100]):
            head = {"runId": row["id"], "runName": row["name"], "url": run_url(base, row)}
            stats = series.statistics(db, row["id"], name)
            config = run_queries.details(db, row)["config"]
            results.append({**head, "status": row["status"], "config": config, "stats": stats})
        return results

    url = f"{base}/o/{ORGANIZATION}/projects/{project}?runs={','.join(map(str, ids))}"
    results = await http.store(request).scan(read)
    return Json({"projectName": project, "logName": name, "comparisonUrl": url, "runs": results})


async def leaderboard(request: Request) -> Response:
    project, name = text(request, "projectName"), text(request, "logName")
    aggregation = request.query_params.get("aggregation", "LAST")
    direction = request.query_params.get("direction", "ASC")
    if aggregation not in series.AGGREGATIONS or direction not in {"ASC", "DESC"}:
        raise Refused(
            400, f"aggregation: expected {', '.join(series.AGGREGATIONS)}; direction: expected ASC or DESC"
        )
    limit, offset, base = (
        number(request, "limit", 20, 100),
        number(request, "offset", 0),
        http.base_url(request),
    )

    def read(db: sqlite3.Connection) -> Response:
        ranked = []
        for row in db.execute("SELECT * FROM run_states WHERE project = ?", (project,)).fetchall():
            stats = series.statistics(db, row["id"], name)
            if stats is not None:
                ranked.append((series.aggregate(stats, aggregation), row))
        ranked.sort(key=lambda pair: pair[0], reverse=direction == "DESC")
        entries = [
            {
                "rank": place,
                "runId": row["id"],
                "runName": row["name"],
                "status": row["status"],
                "url": run_url(base, row),
                "value": value,
                "createdAt": row["created_at"],
            }
            for place, (value, row) in enumerate(ranked, 1)
        ]
        head = {"projectName": project, "logName": name, "aggregation": aggregation, "direction": direction}
        return Json({**head, "runs": entries[offset : offset + limit], "total": len(ranked)})

    return await http.store(request).scan(read)


async def files(request: Request) -> Response:
    run_id, name, base = number(request, "runId"), _name(request), http.base_url(request)
    key: str = request.app.state.key

    def link(token: str) -> str:
        return f"{base}/files/get/{signed_links.link(key, 'read', token)}"

    return Json(
        {"files": await http.store(request).read(lambda db: run_queries.files(db, run_id, name, link))}
    )


async def logs(request: Request) -> Response:
    run_id, kind = number(request, "runId"), request.query_params.get("logType")
    kind = None if kind is None else kind.upper()
    limit, offset = number(request, "limit", 1000, 10000), number(request, "offset", 0)
    lines, total = await http.store(request).read(
        lambda db: run_queries.logs(db, run_id, kind, limit, offset)
    )
    return Json({"logs": lines, "total": total})


async def validate_key(_request: Request) -> Response:
    return Json(
        {"valid": True, "organization": {"id": ORGANIZATION, "slug": ORGANIZATION}, "user": {"id": "1"}}
    )


def _name(request: Request) -> str | None:
    return request.query_params.get("logName")


routes = [
    Route("/api/runs/projects", projects),
    Route("/api/runs/list", runs),
    Route("/api/runs/details/{run_id}", details),
    Route("/api/runs/details/by-display-id/{display_id}", details_by_display_id),
    Route("/api/runs/status/history", status_history),
    Route("/api/runs/metric-names", metric_names),
    Route("/api/runs/metrics", metrics),
    Route("/api/runs/metrics/raw", metrics_raw),
    Route("/api/runs/statistics", statistics),
    Route("/api/runs/compare", compare),
    Route("/api/runs/leaderboard", leaderboard),
    Route("/api/runs/files", files),
    Route("/api/runs/logs", logs),
    Route("/api/runs/data", data),
    Route("/api/runs/alerts", alerts),
    Route("/api/runs/modelGraphs", model_graphs),
    Route("/api/runs/auth/validate", validate_key),
    Route("/api/runs/{run_id:int}", details),
]
