"""Files: a URL to put each to, the bytes in the database, a URL to get it from.

The URLs carry an unguessable token in place of the key, as Pluto's presigned ones do.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from harness.tracker import http, ingest, run_fields
from harness.tracker.http import Json, Refused, integer

FILES_MOST = 1000


def _row(entry: object) -> tuple[Any, ...]:
    """(file_name, file_size, file_type, time_ms, log_name, step, sample_index, caption, annotations)."""
    if not isinstance(entry, dict):
        raise Refused(400, "files: expected a list of objects")
    step, caption, annotations = (entry.get(name) for name in ("step", "caption", "annotations"))
    return (
        run_fields.string(entry, "fileName", 1024),
        integer(entry.get("fileSize"), "fileSize"),
        str(entry.get("fileType") or ""),
        integer(entry.get("time"), "time"),
        run_fields.string(entry, "logName"),
        None if step is None else integer(step, "step"),
        integer(entry.get("sampleIndex") or 0, "sampleIndex"),
        None if caption is None else str(caption),
        None if annotations is None else json.dumps(annotations),
    )


async def announce(request: Request) -> Response:
    """Answer POST /files: `{logName: [{fileName: address}, …]}`. Raises Refused 413 for a file past the
    limit.
    """
    who, body, limit = http.sender(request), await http.fields(request), request.app.state.file_limit
    entries = body.get("files")
    if not isinstance(entries, list) or not 1 <= len(entries) <= FILES_MOST:
        raise Refused(400, f"files: expected a list of 1 to {FILES_MOST}")
    rows = [(*_row(entry), secrets.token_urlsafe(24)) for entry in entries]
    for row in rows:
        if row[1] > limit:
            raise Refused(413, f"{row[0]}: larger than {limit} bytes")

    def keep(db: sqlite3.Connection) -> None:
        request_id = ingest.keep_request(db, "files", who, ingest.Lines(rows))
        db.executemany(
            "INSERT INTO files (request_id, run_id, file_name, file_size, file_type, time_ms, log_name, step,"
            " sample_index, caption, annotations, token) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(request_id, who.run_id, *row) for row in rows],
        )

    await http.store(request).write(keep)
    base = http.base_url(request)
    answer: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        answer.setdefault(row[4], []).append({row[0]: f"{base}/files/put/{row[-1]}"})
    return Json(answer)


async def put(request: Request) -> Response:
    token, kind = request.path_params["token"], request.headers.get("content-type")
    content = await http.body(request, request.app.state.file_limit)
    total_limit: int = request.app.state.files_limit

    def keep(db: sqlite3.Connection) -> None:
        if db.execute("SELECT 1 FROM files WHERE token = ?", (token,)).fetchone() is None:
            raise Refused(404, "no such upload")
        query = "SELECT coalesce(sum(stored_size), 0) FROM files WHERE token <> ?"
        if db.execute(query, (token,)).fetchone()[0] + len(content) > total_limit:
            raise Refused(507, f"all files together are larger than {total_limit} bytes")
        db.execute("INSERT OR REPLACE INTO blobs VALUES (?, ?)", (token, content))
        db.execute(
            "UPDATE files SET stored_size = ?, content_type = ? WHERE token = ?", (len(content), kind, token)
        )

    await http.store(request).write(keep)
    return Response()


async def get(request: Request) -> Response:
    query = "SELECT body, content_type FROM blobs JOIN files USING (token) WHERE token = ?"
    token = request.path_params["token"]
    row = await http.store(request).read(lambda db: db.execute(query, (token,)).fetchone())
    if row is None:
        raise Refused(404, "no such file")
    return Response(row["body"], media_type=row["content_type"] or "application/octet-stream")


routes = [
    Route("/files", announce, methods=["POST"]),
    Route("/files/put/{token}", put, methods=["PUT"]),
    Route("/files/get/{token}", get, methods=["GET"]),
]
