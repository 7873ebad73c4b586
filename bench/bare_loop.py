"""A loop of SQLite inserts with the durability of the tracker: what bench/tracker.py is compared with."""

from __future__ import annotations

import time
from pathlib import Path

from harness.tracker.storage.database import connect

ROWS = """
CREATE TABLE points (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL, name TEXT NOT NULL, step INTEGER NOT NULL,
    time_ms INTEGER NOT NULL, value REAL
);
CREATE INDEX points_series ON points (run_id, name, step);
"""


def bare(folder: Path, size: int, seconds: float) -> float:
    """Points per second of a loop of inserts, `size` to a commit."""
    path = folder / f"bare-{size}-{time.monotonic_ns()}.db"
    db = connect(path)
    db.executescript(ROWS)
    start, first = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        db.execute("BEGIN IMMEDIATE")
        db.executemany(
            "INSERT INTO points (run_id, name, step, time_ms, value) VALUES (1, 'loss/node0', ?, 1, ?)",
            [(step, step / 7) for step in range(first, first + size)],
        )
        db.execute("COMMIT")
        first += size
    took = time.perf_counter() - start
    db.close()
    for left in folder.glob(path.name + "*"):
        left.unlink()
    return first / took
