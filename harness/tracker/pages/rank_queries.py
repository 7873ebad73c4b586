"""Queries for a run's ranks page, and the values that an open page polls to detect changes."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from harness.tracker.query import audit_view, curves, run_queries, series
from harness.tracker.storage import claims

Found = dict[str, Any]
MAX_NAMES = 300


def pulse(db: sqlite3.Connection, run: sqlite3.Row) -> Found:
    """Return a run's status, the number of its rows of each kind, and the number of its metrics.

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


def ranks(db: sqlite3.Connection, run: sqlite3.Row, only: str | None) -> Found:
    """Return the ranks that attached to a run, the missing ranks, the separate runs, and the metrics with
    overwritten values.

    A separate run is another run to which a process in the same job attached. If `only` is given, runs of
    projects other than `only` are omitted.
    """
    run_attachments = audit_view.attachments(db, [run["id"]])
    jobs = sorted({one["jobName"] for one in run_attachments if one["jobName"]})
    split = []
    for job in jobs:
        for other in audit_view.runs(db, None, None, job):
            if other["runId"] != run["id"] and only in {None, other["project"]}:
                attachments = [
                    one for one in audit_view.attachments(db, [other["runId"]]) if one["jobName"] == job
                ]
                split.append({**other, "job": job, "attached": attachments})
    rank_numbers = sorted({one["rank"] for one in run_attachments if one["rank"] is not None})
    world = max(_nodes(run), max(rank_numbers, default=-1) + 1)
    names = [name for name in series.of_run(db, run["id"]) if not name.startswith("sys/")]
    overwritten = []
    for name in names[:MAX_NAMES]:
        rows, hidden_count = curves.overwritten(db, run["id"], name)
        if hidden_count:
            clash_count = curves.clashes(db, run["id"], name)
            overwritten.append({"name": name, "rows": rows, "hidden": hidden_count, "differ": clash_count})
    return {
        "attached": run_attachments,
        "ranks": rank_numbers,
        "missing": [rank for rank in range(world) if rank not in rank_numbers],
        "created": sum(not one["resumed"] for one in run_attachments),
        "split": split,
        "writers": claims.writers(db, [run["id"]]),
        "hidden": overwritten,
        "clashes": sum(1 for one in overwritten if one["differ"]),
        "looked": min(len(names), MAX_NAMES),
        "names": len(names),
        "events": run_queries.status_events(db, run["id"], applied_only=False),
    }


def _nodes(run: sqlite3.Row) -> int:
    """Return the number of nodes in the run's konduktor metadata, or 0 if the run has no such metadata."""
    metadata = json.loads(run["system_metadata"] or "null")
    metadata = metadata.get("konduktor") if isinstance(metadata, dict) else None
    text = str(metadata.get("num_nodes")) if isinstance(metadata, dict) else ""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 5 else 0
