"""Log to one Pluto run, which all ranks and all attempts share through PLUTO_RUN_ID.

The client puts points into a queue on the local disk, and a separate process uploads them. This module reads
from that queue which points have been acknowledged, because neither log() nor finish() reports this.
docs/reference/training.md explains why the client's default settings lose points or break a resume.
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

import multinode
from ground_truth import client_state

from .sender import Point

SETTINGS = {
    # Output must reach the container log immediately. Output that the client captures stays in a pipe, and is
    # lost if the process is killed.
    "disable_console": True,
    # If this were enabled, the client would set the run's status to TERMINATED after SIGTERM. If the status
    # arrived after the next attempt had started, it would persist.
    "x_sigterm_status_enabled": False,
    # By default, the client drops a point after 5 failures, and reports success.
    "sync_process_retry_max": 1_000_000_000,
    "sync_process_batch_size": 1000,
    "sync_process_flush_interval": 0.2,
}
STALLED_SECONDS = 5.0
"""Seconds without an acknowledgement after which `send` checks whether the uploader is alive."""
_METRIC, _COMPLETED = 0, 2


class Pluto:
    """A client that uses the unmodified Pluto package. The same thread must call all methods but `close`."""

    name = "Pluto"

    def __init__(self, run: str, rank: int, config: dict[str, Any], identity: str) -> None:
        """Create the client. If PLUTO_RUN_ID is not set, set it to an id built from `run` and `identity`."""
        self._name, self._rank, self._config = run, rank, config
        # The prefix prevents Pluto from interpreting the id as a number or as one of its display ids.
        os.environ.setdefault("PLUTO_RUN_ID", f"training-{run}-{identity}")
        self._run: Any = None
        self._rows: dict[int, int] = {}
        """Maps the number of each queued point to its row id in the client's queue."""
        self._last_row, self._progress, self._waiting = 0, 0.0, 0

    def connect(self) -> None:
        """Create or join the run. Raises the client's errors: ConnectionError, RuntimeError."""
        import pluto

        # Each attempt needs a new folder. If ranks from two attempts shared a queue, points would be lost.
        folder = Path(tempfile.mkdtemp(prefix=f"pluto-rank{self._rank}-"))
        os.environ["PLUTO_DIR"] = str(folder)
        job = os.environ.get("KONDUKTOR_JOB_NAME")
        self._run = pluto.init(
            project=os.environ.get("PLUTO_PROJECT", "training"),
            name=f"{job}-rank{self._rank}" if job else self._name,
            config=self._config if self._rank == 0 else None,
            settings={**SETTINGS, "sync_process_db_path": str(folder / "sync.db")},
        )
        # At exit, `finish` would set a status even after a failure. `close` sets the correct status.
        atexit.unregister(self._run.finish)
        self._queue = sqlite3.connect(f"file:{folder / 'sync.db'}?mode=ro", uri=True, timeout=10)
        self._rows, self._last_row = {}, 0
        self._progress = time.monotonic()

    def send(self, points: Sequence[Point]) -> tuple[Sequence[Point], str]:
        """Put new points into the queue. Return the unacknowledged points, and any error message."""
        for point in points:
            if point.number not in self._rows:
                self._rows[point.number] = self._put(point)
        waiting: dict[int, str | None] = dict(
            self._queue.execute(
                "SELECT id, error_message FROM sync_queue WHERE record_type = ? AND status <> ?",
                (_METRIC, _COMPLETED),
            )
        )
        unsent = [point for point in points if self._rows[point.number] in waiting]
        self._rows = {point.number: self._rows[point.number] for point in unsent}
        self._see_to_uploader(len(unsent), len(points))
        return unsent, next((error for error in waiting.values() if error), "")

    def close(self, ok: bool) -> None:
        """Finish the run if `ok` is true.

        Otherwise, keep the status, because the next attempt continues the run.
        """
        if self._run is None:
            return
        if not ok:
            # A FAILED status that arrived late would persist even if the next attempt succeeded.
            self._run.close()
            return
        multinode.wait_for_uploader(self._rank, 40.0)
        self._run.finish()
        multinode.wait_for_sync(self._rank, 40.0)

    def state(self) -> dict[str, Any] | None:
        """Return the state of the client's queue (client_state.py) for the ground truth."""
        return client_state.read(os.environ["PLUTO_DIR"]) if self._run is not None else None

    def _put(self, point: Point) -> int:
        """Log a point, and return its row id in the queue. Raises OSError if the client dropped the point."""
        # The client multiplies the timestamp by 1000 and truncates the product. Half a millisecond is added,
        # so that the product does not fall below `time_ms`.
        self._run.log(point.values, step=point.step, timestamp=(point.time_ms + 0.5) / 1000)
        row = self._queue.execute(
            "SELECT id FROM sync_queue WHERE id > ? AND record_type = ? AND step = ? AND timestamp_ms = ?",
            (self._last_row, _METRIC, point.step, point.time_ms),
        ).fetchone()
        if row is None:
            raise OSError(f"Pluto's client has not queued step {point.step}: is the disk full?")
        self._last_row = int(row[0])
        return self._last_row

    def _see_to_uploader(self, waiting: int, before: int) -> None:
        """Reconnect with a new queue if the uploader has exited, because nothing else restarts it."""
        if not waiting or waiting < before:
            self._progress = time.monotonic()
        if time.monotonic() - self._progress < STALLED_SECONDS:
            return
        self._progress = time.monotonic()
        if not multinode.uploaders():
            self._run.close()
            self._queue.close()
            self.connect()
