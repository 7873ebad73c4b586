"""The tracker's tables.

Points are raw: every accepted value is a row of its own, also when it was sent twice. The sender is in
`requests`, whose rows are `first_id` to `last_id`. `writers` counts every request that wrote into a run, by
kind and sender. `launch` is the launch that the request's key was made for (keys.py), NULL or "" for none.
The view `series` is Pluto's deduplicated series.
"""

from __future__ import annotations

VERSION = 2

TABLES = """
CREATE TABLE projects (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, prefix TEXT NOT NULL,
    counter INTEGER NOT NULL DEFAULT 0, created_at TEXT NOT NULL, updated_at TEXT NOT NULL
);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, project TEXT NOT NULL, external_id TEXT, number INTEGER NOT NULL,
    display_id TEXT NOT NULL, name TEXT NOT NULL, status TEXT NOT NULL DEFAULT 'RUNNING',
    tags TEXT NOT NULL DEFAULT '[]', config TEXT, logger_settings TEXT, system_metadata TEXT,
    status_metadata TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL, status_updated TEXT,
    heartbeat_at TEXT, forked_from INTEGER, fork_step INTEGER,
    UNIQUE (project, external_id)
);
CREATE INDEX runs_display ON runs (display_id);
CREATE TABLE attachments (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL, at TEXT NOT NULL, resumed INTEGER NOT NULL,
    name TEXT, hostname TEXT, rank INTEGER, job_name TEXT, restart_attempt INTEGER, node_name TEXT,
    peer TEXT, client_version TEXT, launch TEXT
);
CREATE INDEX attachments_run ON attachments (run_id);
CREATE INDEX attachments_job ON attachments (job_name);
CREATE TABLE status_events (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL, from_status TEXT, to_status TEXT NOT NULL,
    source TEXT NOT NULL, applied INTEGER NOT NULL, metadata TEXT, peer TEXT, at TEXT NOT NULL,
    launch TEXT, sender TEXT
);
CREATE INDEX status_events_run ON status_events (run_id);
CREATE TABLE log_names (
    run_id INTEGER NOT NULL, log_name TEXT NOT NULL, log_type TEXT NOT NULL,
    PRIMARY KEY (run_id, log_name)
) WITHOUT ROWID;
CREATE TABLE notes (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL, at TEXT NOT NULL
);

CREATE TABLE requests (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, run_id INTEGER NOT NULL, run_header TEXT, sender TEXT,
    project TEXT, peer TEXT, received_at TEXT NOT NULL, rows INTEGER NOT NULL, error TEXT,
    first_id INTEGER, last_id INTEGER, launch TEXT
);
CREATE INDEX requests_points ON requests (last_id) WHERE last_id IS NOT NULL;
CREATE TABLE points (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL, name TEXT NOT NULL, step INTEGER NOT NULL,
    time_ms INTEGER NOT NULL, value REAL
);
CREATE INDEX points_series ON points (run_id, name, step);
CREATE TABLE logs (
    id INTEGER PRIMARY KEY, request_id INTEGER NOT NULL, run_id INTEGER NOT NULL, time_ms INTEGER NOT NULL,
    message TEXT NOT NULL, line_number INTEGER NOT NULL, log_type TEXT NOT NULL
);
CREATE INDEX logs_run ON logs (run_id, line_number);
CREATE TABLE data (
    id INTEGER PRIMARY KEY, request_id INTEGER NOT NULL, run_id INTEGER NOT NULL, time_ms INTEGER NOT NULL,
    step INTEGER NOT NULL, log_name TEXT NOT NULL, data_type TEXT NOT NULL, data TEXT NOT NULL
);
CREATE INDEX data_run ON data (run_id, log_name);
CREATE TABLE files (
    id INTEGER PRIMARY KEY, request_id INTEGER NOT NULL, run_id INTEGER NOT NULL, file_name TEXT NOT NULL,
    file_size INTEGER NOT NULL, file_type TEXT NOT NULL, time_ms INTEGER NOT NULL, log_name TEXT NOT NULL,
    step INTEGER, sample_index INTEGER NOT NULL, caption TEXT, annotations TEXT,
    token TEXT NOT NULL UNIQUE, stored_size INTEGER, content_type TEXT
);
CREATE INDEX files_run ON files (run_id, log_name);
CREATE TABLE blobs (token TEXT PRIMARY KEY, body BLOB NOT NULL);

CREATE TABLE writers (
    run_id INTEGER NOT NULL, kind TEXT NOT NULL,
    launch TEXT NOT NULL, sender TEXT NOT NULL, peer TEXT NOT NULL,
    requests INTEGER NOT NULL, rows INTEGER NOT NULL, first TEXT NOT NULL, last TEXT NOT NULL,
    PRIMARY KEY (run_id, kind, launch, sender, peer)
) WITHOUT ROWID;
CREATE TABLE claims (
    project TEXT NOT NULL, external_id TEXT NOT NULL, launch TEXT NOT NULL, at TEXT NOT NULL,
    PRIMARY KEY (project, external_id, launch)
) WITHOUT ROWID;

CREATE VIEW series AS
SELECT run_id, name, step, time_ms, value, id FROM (
    SELECT *, row_number() OVER (PARTITION BY run_id, name, step ORDER BY time_ms DESC, id DESC) AS place
    FROM points
) WHERE place = 1;
"""
"""`points.value` is NULL for NaN: SQLite has infinities but no NaN. `series`: the highest client time wins,
as in Pluto's ReplacingMergeTree(time); of equal times the row that came last."""

_NEW = TABLES[TABLES.index("CREATE TABLE writers") : TABLES.index("CREATE VIEW series")]
MIGRATIONS = {
    1: "ALTER TABLE attachments ADD COLUMN launch TEXT; ALTER TABLE requests ADD COLUMN launch TEXT;"
    " ALTER TABLE status_events ADD COLUMN launch TEXT; ALTER TABLE status_events ADD COLUMN sender TEXT;"
    + _NEW
}
"""What brings a database of an earlier version to the next one."""
