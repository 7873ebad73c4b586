"""Write the points of many requests in a few SQL statements, in one transaction on the writer thread.

Because there is only one writer thread, the writer itself assigns the ids. The points of a request have
consecutive ids.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.tracker.shared import blocks
from harness.tracker.shared.requests import Sender, now
from harness.tracker.storage import bulk_insert, claims
from harness.tracker.storage.ingest_lines import Points

SHAPES = 4096
"""The maximum number of shapes whose ids are cached. A shape is one of a run's lists of metric names."""
_REQUEST = (
    "INSERT INTO requests (id, kind, run_id, run_header, sender, project, peer, received_at, rows, error,"
    " first_id, last_id, launch) VALUES "
)
_BLOCK = "INSERT INTO blocks (last_id, first_id, run_id, shape_id, request_id, packed) VALUES "


@dataclass(frozen=True)
class Sent:
    """A request's points and sender."""

    sender: Sender
    points: Points


class PointWriter:
    """Writes points to the database. The ids of shapes (lists of metric names) are cached until `forget` is
    called."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[int, str], int] = {}

    def forget(self) -> None:
        """Clear the cache of shape ids.

        Call this after a rollback, because the cached ids might not have been stored.
        """
        self._shapes.clear()

    def write(self, db: sqlite3.Connection, group: Sequence[Sent]) -> None:
        """Write the points and the senders of several requests."""
        request, point = db.execute(
            "SELECT (SELECT coalesce(max(id), 0) FROM requests),"
            " (SELECT coalesce(max(last_id), 0) FROM blocks)"
        ).fetchone()
        at = now()
        requests: list[tuple[Any, ...]] = []
        rows: list[tuple[Any, ...]] = []
        for batch in group:
            sender, block, first = batch.sender, batch.points.block, point + 1
            request, count = request + 1, len(block)
            point += count
            ids = (first, point) if count else (None, None)
            sender_fields = (sender.run_id, sender.run_header, sender.name, sender.project, sender.peer)
            requests.append(
                (request, "metrics", *sender_fields, at, count, batch.points.error, *ids, sender.launch)
            )
            if count:
                shape = self._shape(db, sender.run_id, block.title)
                rows.append((point, first, sender.run_id, shape, request, block.packed()))
        bulk_insert.insert(db, _REQUEST, requests)
        bulk_insert.insert(db, _BLOCK, rows)
        claims.note_all(db, "metrics", [(batch.sender, len(batch.points.block)) for batch in group], at)

    def _shape(self, db: sqlite3.Connection, run: int, title: str) -> int:
        shape = self._shapes.get((run, title))
        if shape is None:
            if len(self._shapes) >= SHAPES or len(title) > SHAPES:
                self._shapes.clear()
            shape = self._shapes[run, title] = blocks.shape_of(db, run, title)
        return shape
