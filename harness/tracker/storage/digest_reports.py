"""Store reports with digests of the points that a process logged.

A stored report cannot be replaced. In pods to which an admission policy added the recorder, the recorder
sends a report about each block of steps that is complete (harness/workers/recorder/digest_reports.py). A
process's reports have consecutive numbers, which start at 0. A report is stored as the exact bytes that were
sent, because the process's log contains a digest of these bytes. The size of all reports is limited, so a
process that sends too many cannot fill the disk.
"""

from __future__ import annotations

import base64
import sqlite3
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.tracker.shared.requests import Refused, Sender, integer, loads, now
from harness.tracker.storage import runs

MAX_REPORT_BYTES = 256 << 10
MAX_ENTRIES = 4000
"""The maximum number of entries in a digest report."""
MAX_PROCESS_BYTES = 4 << 20
"""The maximum size of all compressed reports of one process, in bytes. A process that logs 10 metrics and 10
steps per second produces 2 MB in a week."""
MAX_RUN_BYTES = 64 << 20
MAX_ALL_BYTES = 2 << 30
PAGE_BYTES = 8 << 20
ROW_BYTES = 300
"""The size, in bytes, of a row in the `digests` table without its report, rounded up."""
MAX_PROCESS, MAX_METRIC, MAX_DIGEST = 64, 1024, 43
"""The maximum lengths, in characters, of a process id, a metric's name, and a base64-encoded digest."""


@dataclass(frozen=True)
class Report:
    """A digest report as the recorder sent it."""

    process: str
    number: int
    packed: bytes
    """The bytes of the report, compressed, or b"" if the report has no entries."""

    @property
    def size(self) -> int:
        return ROW_BYTES + len(self.packed)


def parsed(text: bytes) -> Report:
    """Parse the digest report in a request body. Raises Refused 400 with the name of the invalid field."""
    try:
        body = loads(text)
    except (ValueError, RecursionError):
        raise Refused(400, "Malformed JSON in request body") from None
    if not isinstance(body, dict):
        raise Refused(400, "The request body must be a JSON object")
    process, entries = body.get("process"), body.get("entries")
    if not isinstance(process, str) or not 0 < len(process) <= MAX_PROCESS:
        raise Refused(400, f"process: expected a string of 1 to {MAX_PROCESS} characters")
    if not isinstance(entries, list) or len(entries) > MAX_ENTRIES:
        raise Refused(400, f"entries: expected a list of at most {MAX_ENTRIES} entries")
    number = _non_negative(body.get("number"), "number")
    for name in ("line", *(["rank"] if body.get("rank") is not None else [])):
        _non_negative(body.get(name), name)
    if not isinstance(chain := body.get("chain"), str) or len(chain) > MAX_DIGEST:
        raise Refused(400, f"chain: expected a string of at most {MAX_DIGEST} characters")
    for entry in entries:
        _check(entry)
    return Report(process, number, zlib.compress(text, 6) if entries else b"")


def _non_negative(value: object, name: str) -> int:
    if not isinstance(value, int) or integer(value, name) < 0:
        raise Refused(400, f"{name}: expected a non-negative integer")
    return value


def _check(entry: object) -> None:
    if isinstance(entry, list) and len(entry) == 6:
        metric, block, points, digest, *times = entry
        if isinstance(metric, str) and isinstance(digest, str):
            for number in (block, points, *times):
                _non_negative(number, "entries")
            if 0 < len(metric) <= MAX_METRIC and len(digest) <= MAX_DIGEST:
                return
    raise Refused(400, "entries: expected [metric, block, points, digest, first time, last time]")


def append(db: sqlite3.Connection, sender: Sender, report: Report) -> int:
    """Store a digest report, and return how many reports of its process are stored.

    The same report can be sent again. Raises Refused 404 if the run does not exist, 409 if the report's
    number is not the process's next number or if other content is stored under this number, and 507 if a
    limit is exceeded.
    """
    run_id = runs.find(db, sender.run_id, sender)["id"]
    key = run_id, report.process
    count, size = db.execute(
        "SELECT count(*), coalesce(sum(size), 0) FROM digests WHERE run_id = ? AND process = ?", key
    ).fetchone()
    if not report.packed:
        return int(count)
    if report.number < count:
        query = "SELECT packed FROM digests WHERE run_id = ? AND process = ? AND number = ?"
        stored = db.execute(query, (*key, report.number)).fetchone()["packed"]
        if zlib.decompress(stored) != zlib.decompress(report.packed):
            raise Refused(409, f"another report is already stored under number {report.number}")
        return int(count)
    if report.number > count:
        raise Refused(409, f"expected report {count}, but this is report {report.number}")
    of_run, of_all = db.execute(
        "SELECT coalesce(sum(size) FILTER (WHERE run_id = ?), 0), coalesce(sum(size), 0) FROM digest_sizes",
        (run_id,),
    ).fetchone()
    for used_bytes, limit in ((size, MAX_PROCESS_BYTES), (of_run, MAX_RUN_BYTES), (of_all, MAX_ALL_BYTES)):
        if used_bytes + report.size > limit:
            raise Refused(507, f"the digests would exceed {limit} bytes")
    db.execute(
        "INSERT INTO digests (run_id, process, number, size, received_at, sender, peer, launch, packed)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(*key, report.number, report.size, now()),
            *(sender.name, sender.peer, sender.launch, report.packed),
        ),
    )
    db.execute(
        "INSERT INTO digest_sizes VALUES (?, ?) ON CONFLICT DO UPDATE SET size = size + excluded.size",
        (run_id, report.size),
    )
    return int(count) + 1


def read(
    db: sqlite3.Connection, run_ids: Sequence[int], after: int, limit: int
) -> tuple[list[dict[str, Any]], int | None]:
    """Return up to `limit` digest reports about these runs, and the id after which to continue.

    The second value is None if there are no more reports. `packed` contains a report as it was sent,
    compressed with zlib and encoded in base64 without padding.
    """
    ids = ",".join(f"{number:d}" for number in run_ids)
    rows = db.execute(
        f"SELECT * FROM digests WHERE run_id IN ({ids}) AND id > ? ORDER BY id LIMIT ?",  # noqa: S608
        (after, limit),
    )
    names = ("run_id", "process", "number", "received_at", "sender", "peer", "launch")
    reports: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        packed = base64.b64encode(row["packed"]).decode().rstrip("=")
        reports.append({**{name: row[name] for name in names}, "packed": packed})
        size += row["size"]
        if size > PAGE_BYTES or len(reports) == limit:
            return reports, row["id"]
    return reports, None
