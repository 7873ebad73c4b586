"""Queries for run lists, used by `list_runs` and by the project pages."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.tracker.query import run_filter, run_order
from harness.tracker.query.run_facts import Facts
from harness.tracker.storage.database import QUERY_SECONDS, Slow

Found = dict[str, Any]
SORTS = {
    "createdAt": "created_at",
    "created_at": "created_at",
    "updatedAt": "updated_at",
    "updated_at": "updated_at",
    "name": "name",
    "status": "status",
}
"""Maps a sort field to its column in the database. run_order.py sorts by all other fields."""


@dataclass(frozen=True)
class Listing:
    """The parameters of a run list: filters, sort order and page."""

    project: str
    search: str | None = None
    tags: Sequence[str] = ()
    sort: str = "-createdAt"
    limit: int = 50
    offset: int = 0
    filter: run_filter.Test | None = None


def runs(db: sqlite3.Connection, listing: Listing) -> tuple[list[Found], int]:
    """Return one page of a project's matching runs, and the number of all matching runs.

    A run matches `tags` if it has at least one of them.
    """
    condition, values = "project = ?", [listing.project]
    if listing.search:
        condition += " AND instr(lower(name), lower(?)) > 0"
        values.append(listing.search)
    if listing.tags:
        condition += (
            " AND EXISTS (SELECT 1 FROM json_each(tags) WHERE value IN (SELECT value FROM json_each(?)))"
        )
        values.append(json.dumps(list(listing.tags)))
    column = SORTS.get(listing.sort.lstrip("+- "))
    if column is None or listing.filter is not None:
        return _filtered(db, condition, values, listing)
    order = "DESC" if listing.sort.startswith("-") else "ASC"
    total = db.execute(f"SELECT count(*) FROM run_states WHERE {condition}", values).fetchone()[0]  # noqa: S608
    rows = db.execute(
        f"SELECT * FROM run_states WHERE {condition} ORDER BY {column} {order}, id {order} LIMIT ? OFFSET ?",  # noqa: S608
        [*values, listing.limit, listing.offset],
    )
    return [_listed(row) for row in rows], total


def _listed(row: sqlite3.Row) -> Found:
    return {
        "id": row["id"],
        "name": row["name"],
        "number": row["number"],
        "displayId": row["display_id"],
        "projectName": row["project"],
        "status": row["status"],
        "tags": json.loads(row["tags"]),
        "createdAt": row["created_at"],
        "updatedAt": row["updated_at"],
        "heartbeatAt": row["heartbeat_at"],
        "externalId": row["external_id"],
    }


def _filtered(
    db: sqlite3.Connection, condition: str, values: list[str], listing: Listing
) -> tuple[list[Found], int]:
    """Return one page of runs and the number of matching runs, in the same form as `runs`.

    This function evaluates the filter and the sort field in Python. Raises Slow if this takes too long.
    """
    deadline = time.monotonic() + QUERY_SECONDS
    matching = []
    for row in db.execute(f"SELECT * FROM run_states WHERE {condition}", values):  # noqa: S608
        if time.monotonic() > deadline:
            raise Slow
        facts = Facts(db, row, deadline)
        if listing.filter is None or listing.filter(facts):
            matching.append(facts)
    ordered = run_order.sorted_runs(matching, listing.sort)
    page = ordered[listing.offset : listing.offset + listing.limit]
    return [_listed(facts.row) for facts in page], len(matching)
