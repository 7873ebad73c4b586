"""The audit view: what the tracker knows and Pluto's own reads do not show.

It shows who attached to which run, each raw row with its sender and receive time, and rows that belong to no
run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from harness.tracker.reads import status_events

Found = dict[str, Any]
COLUMNS = ["run_id", "metric", "step", "value", "time_ms", "received_at", "sender", "peer", "launch"]


def runs(
    db: sqlite3.Connection, external_id: str | None, project: str | None, job_name: str | None
) -> list[Found]:
    """Return the runs with this external id in this project, and every run, anywhere, that the job attached
    to.
    """
    rows = db.execute(
        "SELECT * FROM runs WHERE (external_id = ? AND project = ?) OR"
        " id IN (SELECT run_id FROM attachments WHERE job_name = ?) ORDER BY id",
        (external_id, project, job_name),
    ).fetchall()
    return [
        {
            "runId": row["id"],
            "externalId": row["external_id"],
            "project": row["project"],
            "name": row["name"],
            "status": row["status"],
            "createdAt": row["created_at"],
            "heartbeatAt": row["heartbeat_at"],
            "displayId": row["display_id"],
            "statusHistory": status_events(db, row["id"], applied_only=False),
        }
        for row in rows
    ]


def orphans(db: sqlite3.Connection, project: str | None) -> list[Found]:
    """Return ingest requests of a project whose X-Run-Id names no run, by sender."""
    rows = db.execute(
        "SELECT run_header, sender, peer, kind, sum(rows) AS rows FROM requests WHERE project = ?"
        " AND run_id NOT IN (SELECT id FROM runs) GROUP BY 1, 2, 3, 4",
        (project,),
    )
    return [dict(row) for row in rows]


def attachments(db: sqlite3.Connection, run_ids: Sequence[int]) -> list[Found]:
    rows = db.execute(
        f"SELECT * FROM attachments WHERE run_id IN ({_list(run_ids)}) ORDER BY id"  # noqa: S608
    )
    return [
        {
            "runId": row["run_id"],
            "at": row["at"],
            "resumed": bool(row["resumed"]),
            "name": row["name"],
            "hostname": row["hostname"],
            "rank": row["rank"],
            "jobName": row["job_name"],
            "restartAttempt": row["restart_attempt"],
            "nodeName": row["node_name"],
            "peer": row["peer"],
            "clientVersion": row["client_version"],
            "launch": row["launch"],
        }
        for row in rows
    ]


def points(
    db: sqlite3.Connection, run_ids: Sequence[int], after: int, limit: int
) -> tuple[list[list[Any]], int | None]:
    """Return up to `limit` raw rows after row `after`, in arrival order, as lists of COLUMNS, and where to
    continue.

    The query uses the requests' ranges of row ids. So a page costs only its own rows, however many came
    before.
    """
    query = f"""
        SELECT p.run_id, p.name, p.step, CASE WHEN p.value IS NULL THEN 'NaN' WHEN p.value = 9e999
            THEN 'Infinity' WHEN p.value = -9e999 THEN '-Infinity' ELSE p.value END,
            p.time_ms, r.received_at, r.sender, r.peer, r.launch, p.id
        FROM requests r INDEXED BY requests_points
        CROSS JOIN points p ON p.id BETWEEN r.first_id AND r.last_id
        WHERE r.last_id > :after AND p.id > :after AND r.run_id IN ({_list(run_ids)})
        ORDER BY r.last_id, p.id LIMIT :limit
    """  # noqa: S608
    rows = db.execute(query, {"after": after, "limit": limit}).fetchall()
    following = rows[-1]["id"] if len(rows) == limit else None
    return [list(row)[:-1] for row in rows], following


def _list(numbers: Sequence[int]) -> str:
    return ",".join(f"{number:d}" for number in numbers)
