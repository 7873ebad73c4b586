"""Insert many rows with few statements.

Each statement gives Python's lock away and waits for it again while the event loop has it, so their number is
what writing costs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

AT_ONCE = (64, 32, *range(16, 0, -1))
"""Rows of one statement: few sizes enough that SQLite keeps each prepared."""


def insert(db: sqlite3.Connection, into: str, rows: Sequence[tuple[Any, ...]], after: str = "") -> None:
    """Insert rows. `into` ends where the values begin; `after` is what follows them."""
    for some in _parts(rows):
        one = f"({','.join('?' * len(some[0]))})"
        db.execute(into + ",".join([one] * len(some)) + after, [value for row in some for value in row])


def _parts(rows: Sequence[tuple[Any, ...]]) -> Iterator[Sequence[tuple[Any, ...]]]:
    at = 0
    while at < len(rows):
        size = next(size for size in AT_ONCE if size <= len(rows) - at)
        yield rows[at : at + size]
        at += size
