"""The tracker's database tables.

Points are raw, which means that every accepted value is stored, even if it was sent twice. A request's points
form one row in `blocks` (blocks.py), which contains the points `first_id` to `last_id` in arrival order.
`requests` contains the sender of each request. `shapes` contains each run's distinct lists of metric names.
`writers` counts the requests that wrote to a run, by kind and sender. The column `launch` contains the launch
to which a request's key belongs (keys.py). The column `process` contains the process that a request names
(`X-Harness-Process`). Both columns are NULL or "" if there is no value. `digests` contains reports about the
points that a process logged (digest_reports.py), and `digest_sizes` contains their total size by run.
"""

from __future__ import annotations

VERSION = 5

WRITERS = """
CREATE TABLE writers (
    run_id INTEGER NOT NULL, kind TEXT NOT NULL,
    launch TEXT NOT NULL, sender TEXT NOT NULL, peer TEXT NOT NULL, process TEXT NOT NULL DEFAULT '',
    requests INTEGER NOT NULL, rows INTEGER NOT NULL, first TEXT NOT NULL, last TEXT NOT NULL,
    PRIMARY KEY (run_id, kind, launch, sender, peer, process)
) WITHOUT ROWID;
"""
CLAIMS = """
CREATE TABLE claims (
    project TEXT NOT NULL, external_id TEXT NOT NULL, launch TEXT NOT NULL, at TEXT NOT NULL,
    PRIMARY KEY (project, external_id, launch)
) WITHOUT ROWID;
"""
DIGESTS = """
CREATE TABLE digests (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL, process TEXT NOT NULL, number INTEGER NOT NULL,
    size INTEGER NOT NULL, received_at TEXT NOT NULL, sender TEXT, peer TEXT, launch TEXT,
    packed BLOB NOT NULL, UNIQUE (run_id, process, number)
);
CREATE INDEX digests_size ON digests (run_id, process, size);
CREATE TABLE digest_sizes (run_id INTEGER PRIMARY KEY, size INTEGER NOT NULL);
"""
BLOCKS = """
CREATE TABLE shapes (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL, names TEXT NOT NULL, UNIQUE (run_id, names)
);
CREATE TABLE blocks (
    last_id INTEGER PRIMARY KEY, first_id INTEGER NOT NULL, run_id INTEGER NOT NULL,
    shape_id INTEGER NOT NULL, request_id INTEGER, packed BLOB NOT NULL
);
CREATE INDEX blocks_run ON blocks (run_id);
CREATE INDEX blocks_shape ON blocks (shape_id);
"""
TABLES = (
    """
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
    peer TEXT, client_version TEXT, launch TEXT, process TEXT
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
"""
    + BLOCKS
    + WRITERS
    + CLAIMS
    + DIGESTS
)
