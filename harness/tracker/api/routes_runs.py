"""POST /api/…: the requests that Pluto's client sends for a run, from init to finish."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from harness.tracker.api import http
from harness.tracker.api import request_bodies as body_limits
from harness.tracker.api.http import Json
from harness.tracker.shared import run_fields
from harness.tracker.shared.requests import Refused
from harness.tracker.storage import runs

ORGANIZATION = "harness"
MAX_NOTES_LENGTH = 10_000


def run_url(base: str, row: sqlite3.Row | Mapping[str, Any]) -> str:
    """Return the URL of a run's page, in Pluto's format. The client prints the last path segment of this
    URL."""
    project = row["projectName"] if isinstance(row, Mapping) else row["project"]
    return f"{base}/o/{ORGANIZATION}/projects/{quote(project, safe='')}/r{row['id']}"


def _attached(request: Request, row: sqlite3.Row, resumed: bool) -> Response:
    return Json(
        {
            "runId": row["id"],
            "number": row["number"],
            "displayId": row["display_id"],
            "projectName": row["project"],
            "organizationSlug": ORGANIZATION,
            "url": run_url(http.base_url(request), row),
            "resumed": resumed,
            "forkedFromRunId": row["forked_from"],
            "forkStep": row["fork_step"],
        }
    )


async def slug(_request: Request) -> Response:
    return Json({"organization": {"slug": ORGANIZATION}})


async def create(request: Request) -> Response:
    new = run_fields.read_create(await body_limits.fields(request))
    attach = run_fields.read_attach(http.sender(request), new)
    row, resumed = await http.store(request).write(lambda db: runs.create(db, new, attach))
    return _attached(request, row, resumed)


async def resume(request: Request) -> Response:
    body = await body_limits.fields(request)
    attach = run_fields.read_attach(http.sender(request))
    row = await http.store(request).write(lambda db: runs.resume(db, body, attach))
    return _attached(request, row, True)


async def add_log_names(request: Request) -> Response:
    body, sender = await body_limits.fields(request), http.sender(request)
    log_type, names = run_fields.string(body, "logType", 64), body.get("logName")
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Refused(400, "logName: expected a list of strings")
    await http.store(request).write(
        lambda db: runs.add_log_names(db, body.get("runId"), sender, log_type, names)
    )
    return Json({"success": True})


async def trigger(request: Request) -> Response:
    body, sender = await body_limits.fields(request), http.sender(request)
    status = await http.store(request).write(lambda db: runs.heartbeat(db, body.get("runId"), sender))
    return Json({"status": status, "triggers": None})


async def set_status(request: Request) -> Response:
    body, sender = await body_limits.fields(request), http.sender(request)
    status, metadata = body.get("status"), run_fields.document(body, "statusMetadata")
    if not isinstance(status, str) or status not in runs.STATUSES:
        raise Refused(400, f"status: expected one of {', '.join(sorted(runs.STATUSES))}")
    at = run_fields.moment(body, "statusUpdated")
    await http.store(request).write(
        lambda db: runs.set_status(db, body.get("runId"), status, metadata, sender, at)
    )
    return Json({"success": True})


async def update_tags(request: Request) -> Response:
    body, sender = await body_limits.fields(request), http.sender(request)
    tags = run_fields.tags(body.get("tags"))
    await http.store(request).write(lambda db: runs.update(db, body.get("runId"), sender, tags=tags))
    return Json({"success": True})


async def update_config(request: Request) -> Response:
    body, sender = await body_limits.fields(request), http.sender(request)
    config = run_fields.document(body, "config")
    if config is not None and not isinstance(config, dict):
        raise Refused(400, "config: expected a JSON object")
    await http.store(request).write(lambda db: runs.update(db, body.get("runId"), sender, config=config))
    return Json({"success": True})


async def alert(request: Request) -> Response:
    await _note(request, "alert")
    return Json({"status": "success"})


async def model_graph(request: Request) -> Response:
    await _note(request, "graph")
    return Json({"success": True})


async def update_notes(request: Request) -> Response:
    body, sender = await body_limits.fields(request), http.sender(request)
    notes = body.get("notes")
    if not isinstance(notes, str) or len(notes) > MAX_NOTES_LENGTH:
        raise Refused(400, f"notes: expected a string of at most {MAX_NOTES_LENGTH} characters")
    await http.store(request).write(
        lambda db: runs.note(db, body.get("runId"), sender, "notes", {"text": notes})
    )
    return Json({"success": True})


async def _note(request: Request, field: str) -> None:
    body, sender = await body_limits.fields(request), http.sender(request)
    content: Any = body.get(field)
    if not isinstance(content, dict):
        raise Refused(400, f"{field}: expected an object")
    await http.store(request).write(lambda db: runs.note(db, body.get("runId"), sender, field, content))


routes = [
    Route("/api/slug", slug, methods=["POST"]),
    Route("/api/runs/create", create, methods=["POST"]),
    Route("/api/runs/resume", resume, methods=["POST"]),
    Route("/api/runs/logName/add", add_log_names, methods=["POST"]),
    Route("/api/runs/trigger", trigger, methods=["POST"]),
    Route("/api/runs/status/update", set_status, methods=["POST"]),
    Route("/api/runs/tags/update", update_tags, methods=["POST"]),
    Route("/api/runs/config/update", update_config, methods=["POST"]),
    Route("/api/runs/notes/update", update_notes, methods=["POST"]),
    Route("/api/runs/alert", alert, methods=["POST"]),
    Route("/api/runs/modelGraph/create", model_graph, methods=["POST"]),
]
