"""Upload and download files by an upload URL per file, and by download URLs that expire.

The files are stored on disk beside the database. The URLs contain an unguessable token instead of the API
key, like Pluto's presigned URLs.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import sqlite3
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from harness.tracker.api import body_limits, http
from harness.tracker.api.http import Json
from harness.tracker.shared import run_fields, signed
from harness.tracker.shared.requests import Refused, integer
from harness.tracker.storage import ingest

FILES_MOST = 1000
SHOWN = re.compile(
    r"(image/(png|jpeg|gif|webp)|text/plain|application/json|audio/[a-z0-9.+-]+|video/[a-z0-9.+-]+).*"
)
"""Content types that are safe to show in a browser. Other files are sent as application/octet-stream."""


def _row(entry: object) -> tuple[Any, ...]:
    """Return the values of a row of the table `files`, for the columns from file_name to annotations."""
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
    """Return an upload URL for each announced file, as `{logName: [{fileName: URL}, …]}`.

    Raises Refused 413 for a file that exceeds the limit.
    """
    who, body, limit = http.sender(request), await body_limits.fields(request), request.app.state.file_limit
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
    urls: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        urls.setdefault(row[4], []).append({row[0]: f"{base}/files/put/{row[-1]}"})
    return Json(urls)


async def put(request: Request) -> Response:
    """Store the bytes of an announced file. The file is listed only after all bytes were received.

    Raises Refused 404 for an unknown token before the body is read, and 400 if the size is not as announced.
    """
    token, kind = request.path_params["token"], request.headers.get("content-type")
    store, most = http.store(request), request.app.state.file_limit
    query = "SELECT file_size FROM files WHERE token = ?"
    announced = await store.read(lambda db: db.execute(query, (token,)).fetchone())
    if announced is None:
        raise Refused(404, "no such upload")
    total_limit: int = request.app.state.files_limit
    with store.blobs.writing() as file:
        async for part in body_limits.chunks(request, most):
            await asyncio.to_thread(file.write, part)
        size = file.tell()
        if size != announced["file_size"]:
            raise Refused(400, f"{announced['file_size']} bytes were announced; {size} were received")

        def keep(db: sqlite3.Connection) -> None:
            query = "SELECT coalesce(sum(stored_size), 0) FROM files WHERE token <> ?"
            if db.execute(query, (token,)).fetchone()[0] + size > total_limit:
                raise Refused(507, f"all files together would exceed {total_limit} bytes")
            store.blobs.keep(file, token)
            db.execute(
                "UPDATE files SET stored_size = ?, content_type = ? WHERE token = ?", (size, kind, token)
            )

        await store.write(keep)
    return Response()


async def get(request: Request) -> Response:
    """Return a file's bytes. The headers stop browsers from guessing the content type and running scripts."""
    token, until, seal = (request.path_params[name] for name in ("token", "until", "seal"))
    if not signed.right(request.app.state.key, token, until, seal):
        raise Refused(403, "this link is invalid or has expired: request the list of files again")
    store = http.store(request)
    query = "SELECT content_type, file_name FROM files WHERE token = ? AND stored_size IS NOT NULL"
    row = await store.read(lambda db: db.execute(query, (token,)).fetchone())
    if row is None:
        raise Refused(404, "no such file")
    kind = row["content_type"] or ""
    shown = kind if SHOWN.fullmatch(kind) else "application/octet-stream"
    headers = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}
    path = store.blobs.path(token)
    if path.is_file():
        return FileResponse(path, media_type=shown, headers=headers)
    old = "SELECT body FROM blobs WHERE token = ?"  # An older tracker stored files in its database.
    blob = await store.scan(lambda db: db.execute(old, (token,)).fetchone())
    if blob is None:
        raise Refused(404, "no such file")
    return Response(blob["body"], media_type=shown, headers=headers)


routes = [
    Route("/files", announce, methods=["POST"]),
    Route("/files/put/{token}", put, methods=["PUT"]),
    Route("/files/get/{token}/{until}/{seal}", get, methods=["GET"]),
]
