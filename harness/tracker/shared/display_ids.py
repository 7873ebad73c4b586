"""Display ids such as UTE-1, which consist of a project's prefix and a run's number in the project."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from itertools import count

from harness.tracker.shared.keys import Grant
from harness.tracker.shared.requests import Refused
from harness.tracker.shared.run_access import opens

WORD = re.compile(r"[A-Za-z0-9]+")


def prefixes_of(project: str) -> Iterator[str]:
    """Yield possible prefixes for a project: "unify-test" → "UTE", "UTES", "UTEST", "UTE2", …

    A prefix consists of the words' initials and more letters of the last word. If all such prefixes are in
    use, a number is appended.
    """
    words: list[str] = WORD.findall(project) or ["RUN"]
    initials = "".join(word[0] for word in words[:3])
    letters, min_length = (initials + words[-1][1:]).upper(), max(3, len(initials))
    yield letters[:min_length]
    yield from (letters[:length] for length in range(min_length + 1, len(letters) + 1))
    yield from (f"{letters[:min_length]}{number}" for number in count(2))


def free_prefix(db: sqlite3.Connection, project: str) -> str:
    """Return a prefix that no other project uses, so that a display id identifies exactly one run."""
    used_prefixes = {row[0] for row in db.execute("SELECT prefix FROM projects WHERE name <> ?", (project,))}
    return next(one for one in prefixes_of(project) if one not in used_prefixes)


def find(db: sqlite3.Connection, display_id: str, project: str | None, grant: Grant) -> sqlite3.Row:
    """Return the run with a display id.

    Pass `project` if several projects have the same prefix, which is possible in older databases.

    Runs that the key cannot access are ignored. Raises Refused 404 if there is no such run. Raises Refused
    409 if several projects have such a run and `project` is None.
    """
    query = "SELECT * FROM runs WHERE display_id = ? AND coalesce(?, project) = project ORDER BY id"
    rows = [row for row in db.execute(query, (display_id.upper(), project)) if opens(db, grant, row)]
    if len(rows) > 1:
        projects = ", ".join(sorted(row["project"] for row in rows))
        raise Refused(409, f"several projects have {display_id}: {projects}; choose one with projectName")
    if not rows:
        raise Refused(404, "Run not found")
    run: sqlite3.Row = rows[0]
    return run
