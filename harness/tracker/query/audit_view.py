"""Queries for the audit view, which returns data that Pluto's API does not.

These queries return the processes that attached to each run, each raw row with its sender and receive time,
and rows that belong to no run.
"""

from __future__ import annotations

import base64
import heapq
import json
import math
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from harness.tracker.query.run_queries import WHO, status_events
from harness.tracker.shared.blocks import Block, unpacked

Found = dict[str, Any]
MERGED = 64
"""The maximum number of runs for which a query reads each run's blocks through the index and merges them. A
query for more runs scans all blocks."""
COLUMNS = ["run_id", "metric", "step", "value", "time_ms", "received_at", "sender", "peer", "launch"]


def runs(
    db: sqlite3.Connection, external_id: str | None, project: str | None, job_name: str | None
) -> list[Found]:
    """Return the project's runs with this external id, and all runs to which the job's processes attached."""
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
    """Return a project's ingest requests whose X-Run-Id matches no existing run, grouped by sender."""
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
            "process": row["process"],
        }
        for row in rows
    ]


def points(
    db: sqlite3.Connection, run_ids: Sequence[int], after: int, limit: int
) -> tuple[list[list[Any]], int | None]:
    """Return up to `limit` raw rows whose ids are greater than `after`, in arrival order, and the id after
    which to continue. The second value is None if there are no more rows. Each row is a list with the values
    of COLUMNS.
    """
    rows: list[list[Any]] = []
    for row in _blocks(db, run_ids, after):
        block = _unpacked(row)
        origin = [row["received_at"], row["sender"], row["peer"], row["launch"]]
        start = max(0, after + 1 - row["first_id"])
        for name, step, time_ms, value in islice(block.rows(), start, start + limit - len(rows)):
            rows.append([row["run_id"], name, step, _json(value), time_ms, *origin])
            start += 1
        if len(rows) == limit:
            return rows, row["first_id"] + start - 1
    return rows, None


def columns(
    db: sqlite3.Connection, run_ids: Sequence[int], after: int, limit: int
) -> tuple[list[Found], int | None]:
    """Return blocks of raw rows whose ids are greater than `after`, in arrival order, and the id after which
    to continue. The second value is None if there are no more blocks. The blocks have at most `limit` rows in
    total, unless a single block has more. `packed` contains the columns of a block, encoded in base64
    (blocks.py).
    """
    result: list[Found] = []
    rows = 0
    for row in _blocks(db, run_ids, after):
        if rows and rows + row["count"] > limit:
            return result, result[-1]["last_id"]
        rows += row["count"]
        result.append(
            {
                **{name: row[name] for name in ("run_id", "last_id", "count", "received_at", *WHO)},
                "names": json.loads(row["names"]),
                "packed": base64.b64encode(row["packed"]).decode(),
            }
        )
    return result, None


def _blocks(db: sqlite3.Connection, run_ids: Sequence[int], after: int) -> Iterator[sqlite3.Row]:
    """Yield the blocks of these runs whose last row id is greater than `after`, in arrival order, with
    senders.

    The index contains each run's blocks in arrival order, so the cost of a page does not depend on the number
    of earlier rows. For more than MERGED runs, all blocks are scanned.
    """
    query = """
        SELECT b.run_id, b.first_id, b.last_id, b.last_id - b.first_id + 1 AS count, b.packed, s.names,
            coalesce(r.received_at, '') AS received_at, r.sender, r.peer, r.launch
        FROM blocks b {} JOIN shapes s ON s.id = b.shape_id LEFT JOIN requests r ON r.id = b.request_id
        WHERE {} AND b.last_id > ? ORDER BY b.last_id
    """
    ids = set(run_ids)
    if len(ids) > MERGED:
        condition = "b.run_id IN (SELECT value FROM json_each(?))"
        return db.execute(query.format("NOT INDEXED", condition), (json.dumps(list(ids)), after))
    run_query = query.format("INDEXED BY blocks_run", "b.run_id = ?")
    return heapq.merge(
        *(db.execute(run_query, (run_id, after)) for run_id in ids), key=lambda row: int(row["last_id"])
    )


def _unpacked(row: sqlite3.Row) -> Block:
    return unpacked(json.loads(row["names"]), row["count"], row["packed"])


def _json(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _list(numbers: Sequence[int]) -> str:
    return ",".join(f"{number:d}" for number in numbers)
