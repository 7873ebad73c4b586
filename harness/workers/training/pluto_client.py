"""Log to one Pluto run, which all ranks and all restarts share by PLUTO_RUN_ID.

The client puts points into a queue on this machine's disk, and a process of its own uploads them. Whether a
point arrived is read from that queue: neither log() nor finish() tells. What its settings below change, and
why each of them loses points or breaks a resume as it is, is in docs/training.md.
"""

from __future__ import annotations

import atexit
import os
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import client_state
import multinode

from .sender import Point

SETTINGS = {
    # A line must be in the container's log at once. Captured, it is in a pipe that a kill empties.
    "disable_console": True,
    # A status that arrives after the next attempt has begun would stay, and the run would end as TERMINATED.
    "x_sigterm_status_enabled": False,
    # After 5 failures it would give up on a point, and call that success.
    "sync_process_retry_max": 1_000_000_000,
    "sync_process_batch_size": 1000,
    "sync_process_flush_interval": 0.2,
}
STALLED_SECONDS = 5.0
"""So long nothing is acknowledged, until it is looked whether the uploading process still lives."""
_METRIC, _COMPLETED = 0, 2


class Pluto:
    """The unmodified client. All but `close` is called by one thread."""

    name = "Pluto"

    def __init__(self, run: str, rank: int, config: dict[str, Any], identity: str) -> None:
        """`identity` names the run where PLUTO_RUN_ID does not."""
        self._name, self._rank, self._config = run, rank, config
        # The prefix: what looks like a number or a display id of Pluto's would be looked up as one.
        os.environ.setdefault("PLUTO_RUN_ID", f"training-{run}-{identity}")
        self._run: Any = None
        self._rows: dict[int, int] = {}
        """Row of the client's queue by the number of a point."""
        self._last_row, self._progress, self._waiting = 0, 0.0, 0

    def connect(self) -> None:
        """Create the run or join it. Raises what the client raises: ConnectionError, RuntimeError."""
        import pluto

        # Of this attempt alone: the ranks of two attempts that share a queue lose points.
        folder = Path(tempfile.mkdtemp(prefix=f"pluto-rank{self._rank}-"))
        os.environ["PLUTO_DIR"] = str(folder)
        job = os.environ.get("KONDUKTOR_JOB_NAME")
        self._run = pluto.init(
            project=os.environ.get("PLUTO_PROJECT", "training"),
            name=f"{job}-rank{self._rank}" if job else self._name,
            config=self._config if self._rank == 0 else None,
            settings={**SETTINGS, "sync_process_db_path": str(folder / "sync.db")},
        )
        # At the end of Python it would set a status whatever happened. `close` does what is right.
        atexit.unregister(self._run.finish)
        self._queue = sqlite3.connect(f"file:{folder / 'sync.db'}?mode=ro", uri=True, timeout=10)
        self._rows, self._last_row = {}, 0
        self._progress = time.monotonic()

    def send(self, points: Sequence[Point]) -> tuple[Sequence[Point], str]:
        """Put points into the queue. Return those that the server has not acknowledged."""
        for point in points:
            if point.number not in self._rows:
                self._rows[point.number] = self._put(point)
        waiting: dict[int, str | None] = dict(
            self._queue.execute(
                "SELECT id, error_message FROM sync_queue WHERE record_type = ? AND status <> ?",
                (_METRIC, _COMPLETED),
            )
        )
        left = [point for point in points if self._rows[point.number] in waiting]
        self._rows = {point.number: self._rows[point.number] for point in left}
        self._see_to_uploader(len(left), len(points))
        return left, next((error for error in waiting.values() if error), "")

    def close(self, ok: bool) -> None:
        """End the run where `ok`. Otherwise leave its status: the next attempt goes on with it."""
        if self._run is None:
            return
        if not ok:
            # A status FAILED that arrives late would stay when the run has ended well after all.
            self._run.close()
            return
        multinode.wait_for_uploader(self._rank, 40.0)
        self._run.finish()
        multinode.wait_for_sync(self._rank, 40.0)

    def state(self) -> dict[str, Any] | None:
        """Return what the client's own queue says, for the ground truth."""
        return client_state.read(os.environ["PLUTO_DIR"]) if self._run is not None else None

    def _put(self, point: Point) -> int:
        """Log a point. Return its row in the queue. Raises OSError where the client dropped it."""
        # Half a millisecond more: the client cuts what it multiplied by 1000.
        self._run.log(point.values, step=point.step, timestamp=(point.time_ms + 0.5) / 1000)
        found = self._queue.execute(
            "SELECT id FROM sync_queue WHERE id > ? AND record_type = ? AND step = ? AND timestamp_ms = ?",
            (self._last_row, _METRIC, point.step, point.time_ms),
        ).fetchone()
        if found is None:
            raise OSError(f"Pluto's client has not queued step {point.step}: is the disk full?")
        self._last_row = int(found[0])
        return self._last_row

    def _see_to_uploader(self, waiting: int, before: int) -> None:
        """Begin anew with another queue where the uploading process has died: nobody else starts one."""
        if not waiting or waiting < before:
            self._progress = time.monotonic()
        if time.monotonic() - self._progress < STALLED_SECONDS:
            return
        self._progress = time.monotonic()
        if not multinode.uploaders():
            self._run.close()
            self._queue.close()
            self.connect()
