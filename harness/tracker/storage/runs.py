"""Create and update the store's runs.

Each function is called in a transaction on the store's single writer thread, so there are no races. Run ids,
resuming and status precedence work as in Pluto's server.
"""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import replace
from typing import Any

from harness.tracker.shared import display_ids
from harness.tracker.shared.keys import Grant
from harness.tracker.shared.requests import Refused, Sender, integer, now
from harness.tracker.shared.run_access import claimed_by_another, opens
from harness.tracker.shared.run_fields import Attach, Create, merged
from harness.tracker.storage import claims

TERMINAL = {"COMPLETED": 0, "TERMINATED": 1, "CANCELLED": 2, "FAILED": 3}
"""Maps each terminal status to its precedence. Only a status with a higher precedence replaces a terminal
status, so that a late success does not hide a failure."""
STATUSES = {"RUNNING", *TERMINAL}


def find(db: sqlite3.Connection, run_id: object, sender: Sender | None = None) -> sqlite3.Row:
    """Return a run's row.

    Raises Refused 404 if the run does not exist or the sender's key cannot access it.
    """
    row: sqlite3.Row | None = db.execute(
        "SELECT * FROM runs WHERE id = ?", (integer(run_id, "runId"),)
    ).fetchone()
    if row is None or (sender is not None and not opens(db, sender.grant, row)):
        raise Refused(404, "Run not found")
    return row


def create(db: sqlite3.Connection, new: Create, attach: Attach) -> tuple[sqlite3.Row, bool]:
    """Return the run with the given project and external id, and whether it already existed.

    If the run did not exist, create it.

    In a new database, run ids start at the current Unix time. A client with a run id from a lost database
    therefore cannot write to a run in the new database.
    """
    grant, existing = attach.sender.grant, None
    if grant.project not in {None, new.project}:
        raise Refused(403, f"this key only gives access to project {grant.project}")
    if new.external_id is not None:
        query = "SELECT * FROM runs WHERE project = ? AND external_id = ?"
        existing = db.execute(query, (new.project, new.external_id)).fetchone()
        foreign = existing is not None and not opens(db, grant, existing)
        if foreign or claimed_by_another(db, grant, new.external_id):
            raise Refused(
                403, f"run id {new.external_id} belongs to another job, to which this key gives no access"
            )
    at = now()
    db.execute(
        "INSERT INTO projects (name, prefix, created_at, updated_at) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET updated_at = excluded.updated_at",
        (new.project, display_ids.free_prefix(db, new.project), at, at),
    )
    if existing is not None:
        return reopen(db, existing["id"], attach, new.config), True
    config, tags = _inherited(db, new, grant)
    number, prefix = db.execute(
        "UPDATE projects SET counter = counter + 1 WHERE name = ? RETURNING counter, prefix", (new.project,)
    ).fetchone()
    run_id = db.execute(
        "INSERT INTO runs (id, project, external_id, number, display_id, name, tags, config, logger_settings,"
        " system_metadata, created_at, updated_at, forked_from, fork_step)"
        " VALUES ((SELECT coalesce(max(id), ?) + 1 FROM runs), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            int(time.time()),
            new.project,
            new.external_id,
            number,
            f"{prefix}-{number}",
            new.name,
            json.dumps(tags),
            json.dumps(config),
            json.dumps(new.logger_settings),
            json.dumps(new.system_metadata),
            new.created_at or at,
            new.updated_at or at,
            new.forked_from,
            new.fork_step,
        ),
    ).lastrowid
    assert run_id is not None
    _event(db, run_id, None, "RUNNING", "create", attach.sender)
    _attach(db, run_id, False, attach)
    return find(db, run_id), False


def _inherited(db: sqlite3.Connection, new: Create, grant: Grant) -> tuple[Any, list[str]]:
    """Return the config and tags of a new run.

    A fork can inherit its parent's config and tags, which are then merged with its own. Raises Refused 404 if
    the parent does not exist or the key cannot access it.
    """
    if new.forked_from is None:
        return new.config, new.tags
    query = "SELECT * FROM runs WHERE id = ? AND project = ?"
    parent = db.execute(query, (new.forked_from, new.project)).fetchone()
    if parent is None or not opens(db, grant, parent):
        raise Refused(404, f"Fork parent run {new.forked_from} not found in project {new.project}")
    config, tags = new.config, new.tags
    if new.inherit_config:
        inherited = json.loads(parent["config"] or "null")
        config = inherited if new.config is None else merged(inherited, new.config)
    if new.inherit_tags:
        tags = list(dict.fromkeys([*json.loads(parent["tags"]), *new.tags]))
    return config, tags


def resume(db: sqlite3.Connection, body: dict[str, Any], attach: Attach) -> sqlite3.Row:
    """Resume a run, given by runId, displayId, or externalId and projectName.

    Raises Refused 400, 404 or 409.
    """
    grant = attach.sender.grant
    if body.get("runId") is not None:
        row = find(db, body["runId"], attach.sender)
    elif body.get("displayId") is not None:
        project_name = body.get("projectName") or attach.sender.project
        project = project_name if isinstance(project_name, str) else None
        row = display_ids.find(db, str(body["displayId"]), project, grant)
    elif body.get("externalId") is not None:
        row = db.execute(
            "SELECT * FROM runs WHERE external_id = ? AND project = ?",
            (str(body["externalId"]), str(body.get("projectName"))),
        ).fetchone()
    else:
        raise Refused(400, "one of runId, displayId and externalId is required")
    if row is None or not opens(db, grant, row):
        raise Refused(404, "Run not found")
    return reopen(db, row["id"], attach, None)


def reopen(db: sqlite3.Connection, run_id: int, attach: Attach, config: Any) -> sqlite3.Row:
    """Attach a process to an existing run: set the run's status to RUNNING, and merge `config` into its
    config."""
    row = find(db, run_id)
    at = now()
    if row["status"] in TERMINAL:
        _event(db, run_id, row["status"], "RUNNING", "resume", attach.sender)
        db.execute("UPDATE runs SET status = 'RUNNING', status_updated = ? WHERE id = ?", (at, run_id))
    if config is not None:
        merged_config = json.dumps(merged(json.loads(row["config"] or "null"), config))
        db.execute("UPDATE runs SET config = ? WHERE id = ?", (merged_config, run_id))
    db.execute("UPDATE runs SET updated_at = ? WHERE id = ?", (at, run_id))
    _attach(db, run_id, True, attach)
    return find(db, run_id)


def set_status(
    db: sqlite3.Connection, run_id: object, status: str, metadata: Any, sender: Sender, at: str | None = None
) -> None:
    """Process a status report. If the status cannot replace the current one, only add it to the history.

    `at` is the end time of a run that is imported from another tracker.
    """
    row = find(db, run_id, sender)
    before = row["status"]
    is_applied = before not in TERMINAL or (status in TERMINAL and TERMINAL[status] > TERMINAL[before])
    _event(db, row["id"], before, status, "api", sender, is_applied, metadata)
    claims.note(db, row["id"], "status", sender)
    if is_applied:
        db.execute(
            "UPDATE runs SET status = ?, status_metadata = ?, status_updated = ?, updated_at = ?"
            " WHERE id = ?",
            (status, json.dumps(metadata), at or now(), now(), row["id"]),
        )


def heartbeat(db: sqlite3.Connection, run_id: object, sender: Sender) -> str:
    """Record a heartbeat from one of the run's processes. Return the run's status."""
    row = find(db, run_id, sender)
    claims.note(db, row["id"], "heartbeat", sender)
    db.execute("UPDATE runs SET heartbeat_at = ? WHERE id = ?", (now(), row["id"]))
    return str(row["status"])


def update(
    db: sqlite3.Connection, run_id: object, sender: Sender, *, tags: Any = None, config: Any = None
) -> None:
    """Replace the run's tags, or merge `config` into the run's config."""
    row = find(db, run_id, sender)
    claims.note(db, row["id"], "config" if tags is None else "tags", sender)
    if tags is not None:
        db.execute("UPDATE runs SET tags = ? WHERE id = ?", (json.dumps(tags), row["id"]))
    if config is not None:
        merged_config = json.dumps(merged(json.loads(row["config"] or "null"), config))
        db.execute("UPDATE runs SET config = ? WHERE id = ?", (merged_config, row["id"]))
    db.execute("UPDATE runs SET updated_at = ? WHERE id = ?", (now(), row["id"]))


def add_log_names(
    db: sqlite3.Connection, run_id: object, sender: Sender, log_type: str, names: list[str]
) -> None:
    row = find(db, run_id, sender)
    claims.note(db, row["id"], "names", sender, len(names))
    db.executemany(
        "INSERT INTO log_names VALUES (?, ?, ?)"
        " ON CONFLICT (run_id, log_name) DO UPDATE SET log_type = excluded.log_type",
        [(row["id"], name, log_type) for name in names],
    )


def note(db: sqlite3.Connection, run_id: object, sender: Sender, kind: str, content: Any) -> None:
    """Store a run's alert, model graph or notes as they were sent."""
    row = find(db, run_id, sender)
    claims.note(db, row["id"], kind, sender)
    db.execute(
        "INSERT INTO notes (run_id, kind, body, at) VALUES (?, ?, ?, ?)",
        (row["id"], kind, json.dumps(content), now()),
    )


def _event(
    db: sqlite3.Connection,
    run_id: int,
    before: str | None,
    after: str,
    source: str,
    sender: Sender,
    applied: bool = True,
    metadata: Any = None,
) -> None:
    db.execute(
        "INSERT INTO status_events (run_id, from_status, to_status, source, applied, metadata, peer, sender,"
        " launch, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            run_id,
            before,
            after,
            source,
            applied,
            json.dumps(metadata),
            sender.peer,
            sender.name,
            sender.launch,
            now(),
        ),
    )


def _attach(db: sqlite3.Connection, run_id: int, resumed: bool, attach: Attach) -> None:
    db.execute(
        "INSERT INTO attachments (run_id, at, resumed, name, hostname, rank, job_name, restart_attempt,"
        " node_name, peer, client_version, launch, process) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            run_id,
            now(),
            resumed,
            attach.name,
            attach.hostname,
            attach.rank,
            attach.job_name,
            attach.restart_attempt,
            attach.node_name,
            attach.sender.peer,
            attach.client_version,
            attach.sender.launch,
            attach.sender.process,
        ),
    )
    claims.note(db, run_id, "attach", replace(attach.sender, name=attach.name))
