"""Queries for a run's log page, which shows messages with their senders as a terminal would display them."""

from __future__ import annotations

import sqlite3
from typing import Any

from harness.tracker.pages import log_text

Found = dict[str, Any]
LOG_LINES = 500
CONTEXT_LINES = 100
"""The number of earlier log messages that are read together with new ones. A new message can overwrite a line
that an earlier message wrote, for example a progress bar."""

CONTROLS = "*[\x01-\x08\x0b-\x1f\x7f-\x9f]*"
"""The SQLite GLOB pattern for messages with control characters other than tabs and line feeds."""


def lines(
    db: sqlite3.Connection, run: int, sender: str, kind: str, search: str, before: int | None, after: int
) -> Found:
    """Return matching log lines as a terminal would display them, in arrival order, with secrets masked.

    Without `after`, the last LOG_LINES messages before the id `before` are read. With `after`, the first
    LOG_LINES messages with a larger id are read. Earlier lines that these messages changed are returned again
    with the same `id`. `first` and `last` are the ids of the first and the last message that was read, and
    `more` states whether there are more messages.
    """
    filters = {"run": run, "sender": sender, "kind": kind, "search": search}
    earlier: list[sqlite3.Row] = []
    if after:
        rows = _messages(db, filters, "l.id > :after ORDER BY l.id", after=after)
        if rows and not search:
            query = "l.id <= :after ORDER BY l.id DESC"
            earlier = _messages(db, filters, query, limit=CONTEXT_LINES, after=after)[::-1]
    else:
        last = (1 << 63) - 1 if before is None else before
        rows = _messages(db, filters, "l.id < :before ORDER BY l.id DESC", before=last)[::-1]
    return {
        "lines": log_text.visible_lines([*earlier, *rows], after, alone=bool(search)),
        "first": rows[0]["id"] if rows else 0,
        "last": rows[-1]["id"] if rows else after,
        "more": len(rows) == LOG_LINES,
    }


def _messages(
    db: sqlite3.Connection, filters: Found, order: str, limit: int = LOG_LINES, **bounds: int
) -> list[sqlite3.Row]:
    """Return the stored log messages that match the filters.

    A text search ignores case, escape sequences and other control characters. If the text is not ASCII, the
    search also ignores differences in Unicode normalization.
    """
    for function in (log_text.visible, log_text.clipped, log_text.cut, log_text.folded):
        db.create_function(function.__name__, 1, function, deterministic=True)
    # SQLite's `lower` changes only ASCII letters.
    fold = "lower" if filters["search"].isascii() else "folded"
    query = (
        "SELECT l.id, l.time_ms, clipped(l.message) AS message, cut(l.message) AS cut, l.log_type, r.sender"  # noqa: S608
        " FROM logs l JOIN requests r ON r.id = l.request_id WHERE l.run_id = :run"
        " AND (:sender = '' OR r.sender = :sender) AND (:kind = '' OR l.log_type = :kind)"
        f" AND (:search = '' OR instr({fold}(CASE WHEN l.message GLOB :controls OR instr(l.message, char(0))"
        f" THEN visible(l.message) ELSE l.message END), {fold}(:search)) > 0)"
        f" AND {order} LIMIT :limit"
    )
    values = {**filters, **bounds, "limit": limit, "controls": CONTROLS}
    return db.execute(query, values).fetchall()


def senders(db: sqlite3.Connection, run: int) -> list[str]:
    """Return the senders of the run's log messages, in alphabetical order."""
    query = "SELECT DISTINCT sender FROM writers WHERE run_id = ? AND kind = 'logs' ORDER BY sender"
    return [row[0] for row in db.execute(query, (run,)) if row[0]]
