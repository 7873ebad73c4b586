"""Query the content of each page of the web interface, as plain values for the templates."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from harness.tracker.pages import groups
from harness.tracker.query import curves, lineage, run_queries
from harness.tracker.shared import signed_links
from harness.tracker.shared.requests import Refused

Found = dict[str, Any]
HOME = "/o/harness/projects"
RUNS_PAGE = 50
MAX_COMPARED = 8
MAX_CHARTS = 400
FILES_PAGE = 200
IMAGES = ("png", "jpg", "jpeg", "gif", "webp", "mask")
DATA_PAGE = 200
MAX_COUNT = 1e18
"""The maximum count in a histogram. Histograms with larger counts are not drawn."""
CELLS = (50, 20)
"""The maximum number of rows, and of columns, that a page shows for a logged table."""


def address(project: str, run: int | None = None, tab: str = "") -> str:
    """Return the path of a project's page, or of a run's page if `run` is given."""
    path = f"{HOME}/{quote(project, safe='')}"
    if run is not None:
        path += f"/r{run}"
    return f"{path}/{tab}" if tab else path


def run_of(db: sqlite3.Connection, project: str, run_id: int) -> sqlite3.Row:
    """Return a run. Raises Refused 404 if the project has no such run."""
    row = run_queries.run(db, run_id)
    if row["project"] != project:
        raise Refused(404, "Run not found")
    return row


def head(db: sqlite3.Connection, row: sqlite3.Row) -> Found:
    """Return the values in the header that all pages of a run share."""
    notes = run_queries.notes(db, row["id"], "notes")
    config = json.loads(row["config"] or "null")
    wandb_notes = config.get("_wandb_notes") if isinstance(config, dict) else None
    parent = None
    if row["forked_from"] is not None:
        query = "SELECT id, display_id, project FROM runs WHERE id = ?"
        origin = db.execute(query, (row["forked_from"],)).fetchone()
        parent = None if origin is None else {"name": origin[1], "at": address(origin[2], origin[0])}
    return {
        "id": row["id"],
        "name": row["name"],
        "project": row["project"],
        "display_id": row["display_id"],
        "external_id": row["external_id"],
        "status": row["status"],
        "tags": json.loads(row["tags"]),
        "created_at": row["created_at"],
        "status_updated": row["status_updated"],
        "heartbeat_at": row["heartbeat_at"],
        "silent": bool(row["silent"]),
        "notes": notes[-1]["content"]["text"]
        if notes
        else (wandb_notes if isinstance(wandb_notes, str) else None),
        "parent": parent,
        "fork_step": row["fork_step"],
        "at": address(row["project"], row["id"]),
    }


def charts(db: sqlite3.Connection, runs: Sequence[sqlite3.Row], search: str) -> tuple[list[Found], int]:
    """Return the charts of one run, or of several runs overlaid, and the number of omitted charts."""
    several = len(runs) > 1
    metrics = [
        (row["id"], row["display_id"] if several else "", name)
        for row in runs
        for name in lineage.names(db, row["id"])
        if search.lower() in name.lower()
    ]
    grouped = groups.charts(metrics)
    grouped.sort(key=lambda chart: chart.system)
    result = []
    for number, chart in enumerate(grouped[:MAX_CHARTS]):
        ends = [(one, curves.end(db, one.run, one.name, lineage.deduplicated)) for one in chart.series]
        result.append({"number": number, "title": chart.title, "system": chart.system, "series": ends})
    return result, max(0, len(grouped) - MAX_CHARTS)


def compared(
    db: sqlite3.Connection, project: str, ids: Sequence[int]
) -> tuple[list[sqlite3.Row], list[Found]]:
    """Return the compared runs and their config entries. Entries that differ between the runs come first."""
    rows = [run_of(db, project, one) for one in dict.fromkeys(ids)]
    configs = [dict(groups.flat(json.loads(row["config"] or "null"))) for row in rows]
    entries = []
    for path in dict.fromkeys(path for config in configs for path in config):
        values = [config.get(path) for config in configs]
        entries.append({"path": path, "texts": values, "differs": len(set(values)) > 1})
    return rows, sorted(entries, key=lambda one: (not one["differs"], one["path"]))


def files(db: sqlite3.Connection, run: int, key: str, offset: int) -> tuple[list[Found], list[Found], int]:
    """Return one page of a run's files, divided into pictures and other files, and the run's total number of
    files."""
    rows = run_queries.files(
        db, run, None, lambda token: f"/files/get/{signed_links.link(key, 'read', token)}"
    )
    page = rows[offset : offset + FILES_PAGE]
    pictures = [one for one in page if one["fileType"].lower() in IMAGES]
    return pictures, [one for one in page if one["fileType"].lower() not in IMAGES], len(rows)


def data(db: sqlite3.Connection, run: int) -> Found:
    """Return a run's logged data: strings, alerts, graphs, and the latest histogram, table or other value of
    each name."""
    rows, total = run_queries.data(db, run, None, None, 10_000, 0)
    last = {(row["logName"], row["dataType"]): row for row in rows if row["dataType"] != "string-series"}
    kinds: dict[str, list[Found]] = {"histograms": [], "tables": [], "others": []}
    for row in list(last.values())[:DATA_PAGE]:
        chart = histogram(row["data"]) if row["dataType"] == "HISTOGRAM" else None
        cells = table(row["data"]) if row["dataType"] == "TABLE" else None
        kind = "histograms" if chart else "tables" if cells else "others"
        kinds[kind].append({**row, "drawn": chart, "cells": cells, "data": row["data"][:2000]})
    strings = [{**row, "data": row["data"][:2000]} for row in rows if row["dataType"] == "string-series"]
    return {
        **kinds,
        "strings": strings[-DATA_PAGE:],
        "total": total,
        "alerts": [
            {name: str(one["content"].get(name, ""))[:2000] for name in ("level", "title", "body")}
            for one in run_queries.notes(db, run, "alert")
        ][-DATA_PAGE:],
        "graphs": [len(_mapping(one["content"].get("nodes"))) for one in run_queries.notes(db, run, "graph")],
    }


def histogram(text: str) -> Found | None:
    """Return a histogram's bars, scaled to an area of 100 × 40, or None if the text is not a histogram."""
    document = _mapping(_parsed(text))
    counts, bins = document.get("freq"), document.get("bins")
    if not isinstance(counts, list) or not counts or len(counts) > 1000:
        return None
    numbers = [float(one) for one in counts if isinstance(one, (int, float)) and 0 <= one < MAX_COUNT]
    if len(numbers) != len(counts):
        return None
    limits = _mapping(bins) or ({"min": bins[0], "max": bins[-1]} if isinstance(bins, list) and bins else {})
    peak, width = max(numbers) or 1.0, 100 / len(numbers)
    bars = [
        (round(at * width, 3), round(40 - 38 * n / peak, 3), round(38 * n / peak, 3))
        for at, n in enumerate(numbers)
    ]
    return {
        "bars": bars,
        "width": round(width * 0.94, 3),
        "low": limits.get("min"),
        "high": limits.get("max"),
        "total": sum(numbers),
    }


def table(text: str) -> Found | None:
    """Return a table's first rows, or None if the text is not a table."""
    document = _mapping(_parsed(text))
    rows, columns = document.get("table"), document.get("col")
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        return None
    names = [str(_mapping(one).get("name", "")) for one in columns] if isinstance(columns, list) else []
    cells = [[str(cell)[:200] for cell in row[: CELLS[1]]] for row in rows[: CELLS[0]]]
    return {"names": names[: CELLS[1]], "rows": cells, "more": max(0, len(rows) - CELLS[0])}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
