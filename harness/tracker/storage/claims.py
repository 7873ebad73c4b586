"""Record the writers of each run, and the launches that claimed the run's id before they started.

A claim reserves a run id for a launch, even before the launch has written to the run and after the launch has
ended.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

from harness.tracker.shared.requests import Sender, now
from harness.tracker.storage import bulk_insert

_WRITER = "INSERT INTO writers VALUES "
_ON_CONFLICT = (
    " ON CONFLICT DO UPDATE SET requests = requests + excluded.requests, rows = rows + excluded.rows,"
    " last = excluded.last"
)


def note(db: sqlite3.Connection, run_id: int, kind: str, sender: Sender, rows: int = 1) -> None:
    """Count a request that wrote to a run, in the row of the `writers` table for the request's kind and
    sender."""
    at = now()
    bulk_insert.insert(db, _WRITER, [(run_id, kind, *_sender_key(sender), 1, rows, at, at)], _ON_CONFLICT)


def note_all(db: sqlite3.Connection, kind: str, requests: Iterable[tuple[Sender, int]], at: str) -> None:
    """Count several write requests of one kind, given as (sender, number of rows).

    `sender.run_id` is the id of the run to which the request wrote.
    """
    totals: dict[tuple[Any, ...], list[int]] = {}
    for sender, rows in requests:
        count = totals.setdefault((sender.run_id, kind, *_sender_key(sender)), [0, 0])
        count[0] += 1
        count[1] += rows
    bulk_insert.insert(db, _WRITER, [(*key, *counts, at, at) for key, counts in totals.items()], _ON_CONFLICT)


def _sender_key(sender: Sender) -> tuple[str, str, str, str]:
    return sender.launch or "", sender.name or "", sender.peer or "", sender.process or ""


def claim(
    db: sqlite3.Connection, project: str, external_id: str, launch: str, shared: bool
) -> dict[str, Any]:
    """Claim a run id for a launch, and return whether the claim was granted.

    If another launch has claimed the id, or a run with this id exists, the claim is granted only if `shared`
    is true.
    """
    at = now()
    other_claims = db.execute(
        "SELECT launch, at FROM claims WHERE project = ? AND external_id = ? AND launch <> ? ORDER BY at",
        (project, external_id, launch),
    ).fetchall()
    run = db.execute(
        "SELECT created_at, display_id FROM runs WHERE project = ? AND external_id = ?",
        (project, external_id),
    ).fetchone()
    granted = shared or not (other_claims or run)
    if granted:
        db.execute("INSERT OR IGNORE INTO claims VALUES (?, ?, ?, ?)", (project, external_id, launch, at))
    return {
        "granted": granted,
        "claims": [dict(row) for row in other_claims],
        "run": None if run is None else {"displayId": run["display_id"], "createdAt": run["created_at"]},
    }


def release(db: sqlite3.Connection, launch: str) -> None:
    """Delete a launch's claims on run ids, except the claims on runs that the launch has written to."""
    db.execute(
        "DELETE FROM claims WHERE launch = ? AND NOT EXISTS ("
        "SELECT 1 FROM runs JOIN writers ON run_id = runs.id"
        " WHERE (runs.project, runs.external_id, writers.launch)"
        " = (claims.project, claims.external_id, claims.launch))",
        (launch,),
    )


def writers(db: sqlite3.Connection, run_ids: list[int]) -> list[dict[str, Any]]:
    """Return the writers of these runs, with the numbers of requests and rows for each kind of request.

    Claims of the runs' ids are included, with the kind "claim".
    """
    ids = ",".join(f"{number:d}" for number in run_ids)
    rows = db.execute(
        f"SELECT * FROM writers WHERE run_id IN ({ids}) UNION ALL"  # noqa: S608
        " SELECT runs.id, 'claim', launch, '', '', '', 1, 0, claims.at, claims.at FROM claims JOIN runs"
        f" USING (project, external_id) WHERE runs.id IN ({ids}) ORDER BY 1, first, kind"
    )
    return [
        {**dict(row), **{name: row[name] or None for name in ("launch", "sender", "peer", "process")}}
        for row in rows
    ]
