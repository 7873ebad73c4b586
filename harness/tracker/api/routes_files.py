"""Upload and download files through expiring signed URLs, like Pluto's presigned URLs.

The files are stored on disk next to the database. An upload URL permits writing one file and nothing else,
and a download URL permits reading one file.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sqlite3
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from harness.tracker.api import http, media_types
from harness.tracker.api import request_bodies as body_limits
from harness.tracker.api.http import Json
from harness.tracker.api.uploads import Uploads
from harness.tracker.shared import run_fields, signed_links
from harness.tracker.shared.keys import OWNER
from harness.tracker.shared.requests import Busy, Refused, integer
from harness.tracker.storage import ingest_lines

MAX_FILES = 1000


def _row(entry: object) -> tuple[Any, ...]:
    """Return the values of an announced file for the `files` table.

    The values are in the order of the columns from file_name to annotations. Raises Refused 400 if a field is
    invalid.
    """
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
    sender, body, limit = (
        http.sender(request),
        await body_limits.fields(request),
        request.app.state.file_limit,
    )
    entries = body.get("files")
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_FILES:
        raise Refused(400, f"files: expected a list of 1 to {MAX_FILES} files")
    rows = [(*_row(entry), secrets.token_urlsafe(24)) for entry in entries]
    for row in rows:
        if row[1] < 0:
            raise Refused(400, "fileSize: must not be negative")
        if row[1] > limit:
            raise Refused(413, f"{row[0]}: larger than {limit} bytes")

    def insert(db: sqlite3.Connection) -> None:
        request_id = ingest_lines.store_request(db, "files", sender, ingest_lines.Lines(rows))
        db.executemany(
            "INSERT INTO files (request_id, run_id, file_name, file_size, file_type, time_ms, log_name, step,"
            " sample_index, caption, annotations, token) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(request_id, sender.run_id, *row) for row in rows],
        )

    await http.store(request).write(insert)
    base = http.base_url(request)
    urls: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        link = signed_links.link(request.app.state.key, "upload", row[-1])
        urls.setdefault(row[4], []).append({row[0]: f"{base}/files/put/{link}"})
    return Json(urls)


async def put(request: Request) -> Response:
    """Store the bytes of an announced file. The file is listed only after all bytes have been received.

    An upload URL is valid for one file. A client that did not receive the response can send the same bytes
    again. Before reading the body, raises Refused 403 for an invalid URL, 404 for an unknown file, 400 if the
    size differs from the announced size, 413 or 507 for a file that exceeds a limit, and 429 while another
    request sends the same file. Raises Refused 409 if other bytes are already stored.
    """
    token, expires_at, seal = (request.path_params[name] for name in ("token", "until", "seal"))
    if not signed_links.right(request.app.state.key, "upload", token, expires_at, seal):
        raise Refused(403, "this upload URL is invalid or has expired: announce the file again")
    http.admit(request, OWNER)
    uploads: Uploads = request.app.state.uploads
    if not uploads.begin(token):
        raise Busy("another request is uploading this file")
    try:
        async with asyncio.timeout(signed_links.SECONDS):
            await _receive(request, token, uploads)
    except TimeoutError:
        raise Refused(408, f"the body was not complete after {signed_links.SECONDS} s") from None
    finally:
        uploads.end(token)
    return Response()


async def _receive(request: Request, token: str, uploads: Uploads) -> None:
    store, total_limit = http.store(request), request.app.state.files_limit

    def begin(db: sqlite3.Connection) -> sqlite3.Row:
        query = "SELECT file_size, stored_size FROM files WHERE token = ?"
        row: sqlite3.Row | None = db.execute(query, (token,)).fetchone()
        if row is None:
            raise Refused(404, "no such upload")
        _check_length(request, row["file_size"])
        if row["stored_size"] is None:
            stored = db.execute("SELECT coalesce(sum(stored_size), 0) FROM files").fetchone()[0]
            if not uploads.reserve(token, row["file_size"], total_limit - stored):
                raise Refused(507, f"all files together would exceed {total_limit} bytes")
        return row

    announced = await store.write(begin)
    size = announced["file_size"]
    if announced["stored_size"] is not None:
        if not await _is_stored(request, store.blobs.path(token), size):
            raise Refused(409, "this upload URL was already used: announce the file again")
        return
    with store.blobs.writing() as file:
        async for part in body_limits.chunks(request, size):
            await asyncio.to_thread(file.write, part)
        if file.tell() != size:
            raise Refused(400, f"{size} bytes were announced; {file.tell()} were received")

        def insert(db: sqlite3.Connection) -> None:
            store.blobs.store(file, token)
            kind = media_types.media_type(request.headers.get("content-type"))
            query = "UPDATE files SET stored_size = ?, content_type = ? WHERE token = ?"
            db.execute(query, (size, kind, token))
            uploads.stored(token)

        try:
            await store.write(insert)
        except Exception:  # The transaction was rolled back, so the file is not counted as stored.
            store.blobs.path(token).unlink(missing_ok=True)
            raise


def _check_length(request: Request, size: int) -> None:
    """Raise Refused 400 or 413 if the request has a Content-Length header whose value is not `size`."""
    declared = request.headers.get("content-length")
    if declared is None or declared == f"{size}":
        return
    limit: int = request.app.state.file_limit
    if declared.isascii() and declared.isdigit() and int(declared[:19]) > limit:
        raise Refused(413, f"the body is larger than {limit} bytes")
    raise Refused(400, f"{size} bytes were announced; Content-Length is {declared[:40]}")


async def _is_stored(request: Request, path: Path, size: int) -> bool:
    """Read the request's body, and return whether the body is identical to the stored file."""
    if not path.is_file():
        return False
    equal, remaining = True, size
    with path.open("rb") as file:
        async for part in body_limits.chunks(request, size):
            remaining -= len(part)
            equal = equal and await asyncio.to_thread(file.read, len(part)) == part
    return equal and remaining == 0


async def get(request: Request) -> Response:
    """Return a file's bytes. The response headers stop browsers from guessing the content type and running
    scripts."""
    token, expires_at, seal = (request.path_params[name] for name in ("token", "until", "seal"))
    if not signed_links.right(request.app.state.key, "read", token, expires_at, seal):
        raise Refused(403, "this link is invalid or has expired: request the list of files again")
    store = http.store(request)
    query = "SELECT content_type, file_name FROM files WHERE token = ? AND stored_size IS NOT NULL"
    row = await store.read(lambda db: db.execute(query, (token,)).fetchone())
    if row is None:
        raise Refused(404, "no such file")
    # The type is checked again, because older trackers stored any type that a client sent.
    headers = media_types.headers(media_types.media_type(row["content_type"]), row["file_name"])
    path = store.blobs.path(token)
    if path.is_file():
        return FileResponse(path, headers=headers)
    blob_query = "SELECT body FROM blobs WHERE token = ?"  # Older trackers stored files in the database.
    blob = await store.scan(lambda db: db.execute(blob_query, (token,)).fetchone())
    if blob is None:
        raise Refused(404, "no such file")
    return Response(blob["body"], headers=headers)


routes = [
    Route("/files", announce, methods=["POST"]),
    Route("/files/put/{token}/{until}/{seal}", put, methods=["PUT"]),
    Route("/files/get/{token}/{until}/{seal}", get, methods=["GET"]),
]
