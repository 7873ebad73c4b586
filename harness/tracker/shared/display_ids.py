"""Display ids such as UTE-1: the project's prefix and the run's number in the project."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from itertools import count

from harness.tracker.shared.requests import Refused

WORD = re.compile(r"[A-Za-z0-9]+")


def prefixes_of(project: str) -> Iterator[str]:
    """Yield display-id prefixes: initials with letters of the last word, then longer, then with a number.

    "unify-test" → "UTE", "UTES", "UTEST", "UTE2", …
    """
    words: list[str] = WORD.findall(project) or ["RUN"]
    initials = "".join(word[0] for word in words[:3])
    whole, least = (initials + words[-1][1:]).upper(), max(3, len(initials))
    yield whole[:least]
    yield from (whole[:length] for length in range(least + 1, len(whole) + 1))
    yield from (f"{whole[:least]}{number}" for number in count(2))


def free_prefix(db: sqlite3.Connection, project: str) -> str:
    """Return a prefix that no other project has, so that a display id alone identifies one run."""
    taken = {row[0] for row in db.execute("SELECT prefix FROM projects WHERE name <> ?", (project,))}
    return next(one for one in prefixes_of(project) if one not in taken)


def find(db: sqlite3.Connection, display_id: str, project: str | None) -> sqlite3.Row:
    """Return the run with a display id. In an older database, projects may share a prefix: pass `project`.

    Raises Refused 404 if there is no such run, and 409 if several projects have one and `project` is None.
    """
    query = "SELECT * FROM runs WHERE display_id = ? AND coalesce(?, project) = project ORDER BY id"
    rows = db.execute(query, (display_id.upper(), project)).fetchall()
    if len(rows) > 1:
        projects = ", ".join(sorted(row["project"] for row in rows))
        raise Refused(409, f"several projects have {display_id}: {projects}; choose one by projectName")
    if not rows:
        raise Refused(404, "Run not found")
    run: sqlite3.Row = rows[0]
    return run
