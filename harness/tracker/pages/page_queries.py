"""Queries that only the pages need: log lines with senders, and the ranks of a run."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from harness.tracker.pages import log_text
from harness.tracker.query import audit_view, curves, reads, series
from harness.tracker.storage import claims

Found = dict[str, Any]
LOG_LINES = 500
CONTEXT_LINES = 100
"""The number of earlier log messages that are read together with new ones. A new message can overwrite a line
that an earlier message wrote, for example a progress bar."""
MAX_NAMES = 300


def lines(
    db: sqlite3.Connection, run: int, sender: str, kind: str, search: str, before: int | None, after: int
) -> Found:
    """Return matching log lines as a terminal would display them, in arrival order, with secrets masked.

    Without `after`, the last LOG_LINES messages before the id `before` are read. With `after`, the first
    LOG_LINES messages with a larger id are read. Earlier lines that these messages changed are returned again
    with the same `id`. `first` and `last` are the ids of the first and the last message that was read, and
    `more` is whether there are more messages.
    """
    wanted = {"run": run, "sender": sender, "kind": kind, "search": search}
    earlier: list[sqlite3.Row] = []
    if after:
        rows = _messages(db, wanted, "l.id > :after ORDER BY l.id", after=after)
        if rows and not search:
            query = "l.id <= :after ORDER BY l.id DESC"
            earlier = _messages(db, wanted, query, most=CONTEXT_LINES, after=after)[::-1]
    else:
        last = (1 << 63) - 1 if before is None else before
        rows = _messages(db, wanted, "l.id < :before ORDER BY l.id DESC", before=last)[::-1]
    return {
        "lines": log_text.visible_lines([*earlier, *rows], after, alone=bool(search)),
        "first": rows[0]["id"] if rows else 0,
        "last": rows[-1]["id"] if rows else after,
        "more": len(rows) == LOG_LINES,
    }


def _messages(
    db: sqlite3.Connection, wanted: Found, order: str, most: int = LOG_LINES, **bounds: int
) -> list[sqlite3.Row]:
    """Return the stored log messages that match the filters.

    A text search ignores escape sequences and other control characters.
    """
    for function in (log_text.visible, log_text.clipped, log_text.cut):
        db.create_function(function.__name__, 1, function, deterministic=True)
    query = (
        "SELECT l.id, l.time_ms, clipped(l.message) AS message, cut(l.message) AS cut, l.log_type, r.sender"  # noqa: S608
        " FROM logs l JOIN requests r ON r.id = l.request_id WHERE l.run_id = :run"
        " AND (:sender = '' OR r.sender = :sender) AND (:kind = '' OR l.log_type = :kind)"
        " AND (:search = '' OR instr(lower(CASE WHEN instr(l.message, char(27)) + instr(l.message, char(13))"
        " THEN visible(l.message) ELSE l.message END), lower(:search)) > 0)"
        f" AND {order} LIMIT :most"
    )
    return db.execute(query, {**wanted, **bounds, "most": most}).fetchall()


def pulse(db: sqlite3.Connection, run: sqlite3.Row) -> Found:
    """Return a run's status and its number of rows by kind.

    An open page polls these values to detect changes.
    """
    rows: dict[str, int] = dict(
        db.execute(
            "SELECT kind, sum(rows) FROM writers WHERE run_id = ? GROUP BY kind", (run["id"],)
        ).fetchall()
    )
    return {
        "run": run["id"],
        "status": run["status"],
        "metrics": rows.get("metrics", 0),
        "logs": rows.get("logs", 0),
        "files": rows.get("files", 0),
        "processes": rows.get("attach", 0),
        "names": len(series.of_run(db, run["id"])),
    }


def senders(db: sqlite3.Connection, run: int) -> list[str]:
    query = "SELECT DISTINCT sender FROM writers WHERE run_id = ? AND kind = 'logs' ORDER BY sender"
    return [row[0] for row in db.execute(query, (run,)) if row[0]]


def ranks(db: sqlite3.Connection, run: sqlite3.Row, only: str | None) -> Found:
    """Return the ranks that attached to a run, the missing ranks, separate runs, and overwritten values.

    A separate run is another run to which a process in the same job attached. If `only` is given, runs of
    projects other than `only` are omitted.
    """
    attached = audit_view.attachments(db, [run["id"]])
    jobs = sorted({one["jobName"] for one in attached if one["jobName"]})
    split = []
    for job in jobs:
        for other in audit_view.runs(db, None, None, job):
            if other["runId"] != run["id"] and only in {None, other["project"]}:
                there = [one for one in audit_view.attachments(db, [other["runId"]]) if one["jobName"] == job]
                split.append({**other, "job": job, "attached": there})
    seen = sorted({one["rank"] for one in attached if one["rank"] is not None})
    world = max(_nodes(run), max(seen, default=-1) + 1)
    names = [name for name in series.of_run(db, run["id"]) if not name.startswith("sys/")]
    hidden = []
    for name in names[:MAX_NAMES]:
        rows, under = curves.overwritten(db, run["id"], name)
        if under:
            differ = curves.clashes(db, run["id"], name)
            hidden.append({"name": name, "rows": rows, "hidden": under, "differ": differ})
    return {
        "attached": attached,
        "ranks": seen,
        "missing": [rank for rank in range(world) if rank not in seen],
        "created": sum(not one["resumed"] for one in attached),
        "split": split,
        "writers": claims.writers(db, [run["id"]]),
        "hidden": hidden,
        "clashes": sum(1 for one in hidden if one["differ"]),
        "looked": min(len(names), MAX_NAMES),
        "names": len(names),
        "events": reads.status_events(db, run["id"], applied_only=False),
    }


def _nodes(run: sqlite3.Row) -> int:
    """Return the number of nodes in the run's konduktor metadata, or 0 if the run has no such metadata."""
    metadata = json.loads(run["system_metadata"] or "null")
    metadata = metadata.get("konduktor") if isinstance(metadata, dict) else None
    text = str(metadata.get("num_nodes")) if isinstance(metadata, dict) else ""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 5 else 0
