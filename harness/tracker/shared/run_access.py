"""Check which runs a key can access.

The checks read the database, because a launch key gives access to the runs that the launch created.
"""

from __future__ import annotations

import sqlite3

from harness.tracker.shared.keys import Grant


def opens(db: sqlite3.Connection, grant: Grant, run: sqlite3.Row) -> bool:
    """Return whether a key can access a run, given as a row of the `runs` table."""
    if grant.project is None:
        return True
    if grant.project != run["project"]:
        return False
    return grant.launch is None or grant.run == run["external_id"] or _created(db, run["id"], grant.launch)


def claimed_by_another(db: sqlite3.Connection, grant: Grant, external_id: str) -> bool:
    """Return whether this run id is claimed by other launches but not by the launch of this key."""
    if grant.launch is None or grant.run == external_id:
        return False
    query = "SELECT launch FROM claims WHERE project = ? AND external_id = ?"
    claims = {row[0] for row in db.execute(query, (grant.project, external_id))}
    return bool(claims) and grant.launch not in claims


def _created(db: sqlite3.Connection, run_id: int, launch: str) -> bool:
    query = "SELECT 1 FROM attachments WHERE run_id = ? AND launch = ? AND NOT resumed"
    return db.execute(query, (run_id, launch)).fetchone() is not None
