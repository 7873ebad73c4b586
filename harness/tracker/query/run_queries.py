"""Queries for projects, a run, logs and files, as needed by `pluto.query`. They return plain dicts."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from typing import Any

from harness.tracker.query import series
from harness.tracker.shared.requests import Refused, from_ms
from harness.tracker.storage import run_timeouts

WHO = ("peer", "sender", "launch")
Found = dict[str, Any]


def projects(db: sqlite3.Connection) -> list[Found]:
    rows = db.execute(
        "SELECT p.*, (SELECT count(*) FROM runs WHERE project = p.name) AS runs FROM projects p ORDER BY id"
    )
    return [
        {
            "id": row["id"],
            "name": row["name"],
            "createdAt": row["created_at"],
            "updatedAt": row["updated_at"],
            "runCount": row["runs"],
        }
        for row in rows
    ]


def run(db: sqlite3.Connection, run_id: int) -> sqlite3.Row:
    """Return a run's row. Raises Refused 404 if there is no run with this id."""
    return _one(db.execute("SELECT * FROM run_states WHERE id = ?", (run_id,)))


def _one(rows: sqlite3.Cursor) -> sqlite3.Row:
    row: sqlite3.Row | None = rows.fetchone()
    if row is None:
        raise Refused(404, "Run not found")
    return row


def details(db: sqlite3.Connection, row: sqlite3.Row) -> Found:
    """Return all of a run's data except its points. `logNames` includes metrics that were not announced."""
    names = dict.fromkeys(series.of_run(db, row["id"]), "METRIC")
    names.update(db.execute("SELECT log_name, log_type FROM log_names WHERE run_id = ?", (row["id"],)))
    return {
        "id": row["id"],
        "name": row["name"],
        "number": row["number"],
        "displayId": row["display_id"],
        "status": row["status"],
        "tags": json.loads(row["tags"]),
        **{
            key: json.loads(row[column] or "null")
            for key, column in (
                ("config", "config"),
                ("systemMetadata", "system_metadata"),
                ("loggerSettings", "logger_settings"),
                ("statusMetadata", "status_metadata"),
            )
        },
        **({"statusMetadata": run_timeouts.REASON} if row["silent"] else {}),
        "createdAt": row["created_at"],
        "updatedAt": row["updated_at"],
        "statusUpdated": row["status_updated"],
        "projectName": row["project"],
        "externalId": row["external_id"],
        "forkedFromRunId": row["forked_from"],
        "forkStep": row["fork_step"],
        "heartbeatAt": row["heartbeat_at"],
        "notes": _text_of_notes(db, row["id"]),
        "logNames": [
            {"logName": name, "logType": kind, "logGroup": name.rpartition("/")[0]}
            for name, kind in sorted(names.items())
        ],
    }


def _text_of_notes(db: sqlite3.Connection, run_id: int) -> str | None:
    """Return the text of the run's latest notes, or None if it has no notes."""
    versions = notes(db, run_id, "notes")
    return versions[-1]["content"]["text"] if versions else None


def notes(db: sqlite3.Connection, run_id: int, kind: str) -> list[Found]:
    """Return a run's alerts, graphs or notes (`kind` is "alert", "graph" or "notes"), as they were sent."""
    query = "SELECT body, at FROM notes WHERE run_id = ? AND kind = ? ORDER BY id"
    return [
        {"content": json.loads(row["body"]), "receivedAt": row["at"]}
        for row in db.execute(query, (run_id, kind))
    ]


def data(
    db: sqlite3.Connection, run_id: int, name: str | None, kind: str | None, limit: int, offset: int
) -> tuple[list[Found], int]:
    """Return one page of a run's histograms, tables, graphs and strings, sorted by name and step, and their
    total number."""
    condition = "run_id = ? AND coalesce(?, log_name) = log_name AND coalesce(?, data_type) = data_type"
    values = (run_id, name, kind)
    total = db.execute(f"SELECT count(*) FROM data WHERE {condition}", values).fetchone()[0]  # noqa: S608
    rows = db.execute(
        f"SELECT * FROM data WHERE {condition} ORDER BY log_name, step, id LIMIT ? OFFSET ?",  # noqa: S608
        (*values, limit, offset),
    )
    return [
        {
            "logName": row["log_name"],
            "dataType": row["data_type"],
            "step": row["step"],
            "time": from_ms(row["time_ms"]),
            "data": row["data"],
        }
        for row in rows
    ], total


def status_events(db: sqlite3.Connection, run_id: int, *, applied_only: bool = True) -> list[Found]:
    """Return a run's status reports, oldest first.

    If `applied_only` is false, as in the audit view, include reports that could not replace the status.
    """
    rows = db.execute(
        "SELECT * FROM status_events WHERE run_id = ? AND applied >= ? ORDER BY id", (run_id, applied_only)
    )
    return [
        {
            "id": str(row["id"]),
            "runId": row["run_id"],
            "fromStatus": row["from_status"],
            "toStatus": row["to_status"],
            "source": row["source"],
            "metadata": json.loads(row["metadata"] or "null"),
            "actorId": None,
            "apiKeyId": None,
            "createdAt": row["at"],
            **(
                {} if applied_only else {"applied": bool(row["applied"]), **{name: row[name] for name in WHO}}
            ),
        }
        for row in rows
    ]


def logs(
    db: sqlite3.Connection, run_id: int, log_type: str | None, limit: int, offset: int
) -> tuple[list[Found], int]:
    """Return one page of log lines, sorted by line number as in Pluto, and the total number of lines.

    The lines of several processes are therefore interleaved.
    """
    condition, values = "run_id = ? AND coalesce(?, log_type) = log_type", (run_id, log_type)
    total = db.execute(f"SELECT count(*) FROM logs WHERE {condition}", values).fetchone()[0]  # noqa: S608
    rows = db.execute(
        f"SELECT * FROM logs WHERE {condition} ORDER BY line_number, id LIMIT ? OFFSET ?",  # noqa: S608
        (*values, limit, offset),
    )
    return [
        {
            "time": from_ms(row["time_ms"]),
            "logType": row["log_type"],
            "lineNumber": row["line_number"],
            "message": row["message"],
            "step": None,
        }
        for row in rows
    ], total


def files(
    db: sqlite3.Connection, run_id: int, log_name: str | None, link: Callable[[str], str]
) -> list[Found]:
    """Return a run's files, sorted by step. Files whose bytes were not received are left out."""
    rows = db.execute(
        "SELECT * FROM files WHERE run_id = ? AND coalesce(?, log_name) = log_name"
        " AND stored_size IS NOT NULL ORDER BY step, sample_index, id",
        (run_id, log_name),
    )
    return [
        {
            "fileName": row["file_name"],
            "fileType": row["file_type"],
            "fileSize": row["stored_size"],
            "logName": row["log_name"],
            "logGroup": row["log_name"].rpartition("/")[0],
            "time": from_ms(row["time_ms"]),
            "step": row["step"],
            "caption": row["caption"],
            "url": link(row["token"]),
        }
        for row in rows
    ]
