"""Insert many rows in a few SQL statements.

Each statement releases the GIL, and must then wait until the event loop releases the GIL again. The duration
of a write therefore depends on the number of statements.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

AT_ONCE = (64, 32, *range(16, 0, -1))
"""The permitted numbers of rows per statement. Only a few numbers are permitted, so that SQLite can cache
every prepared statement."""


def insert(db: sqlite3.Connection, into: str, rows: Sequence[tuple[Any, ...]], after: str = "") -> None:
    """Insert rows with as few statements as possible.

    `into` is the SQL before the values, and `after` is the SQL after the values.
    """
    for part in _parts(rows):
        placeholders = f"({','.join('?' * len(part[0]))})"
        db.execute(
            into + ",".join([placeholders] * len(part)) + after, [value for row in part for value in row]
        )


def _parts(rows: Sequence[tuple[Any, ...]]) -> Iterator[Sequence[tuple[Any, ...]]]:
    at = 0
    while at < len(rows):
        size = next(size for size in AT_ONCE if size <= len(rows) - at)
        yield rows[at : at + size]
        at += size
