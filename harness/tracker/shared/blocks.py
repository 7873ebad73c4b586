"""Blocks, which store points in columns. All points of one request form one block, which is one database row.

A block contains the names of its metrics. For each point, in arrival order, the block contains a step, a
client time and a value. `which` contains the index of each point's metric. If the metrics take turns in the
order of their names in the block, for example because all ingest lines log the same names, `which` is None.
On disk, the columns are stored one after another as little-endian 64-bit numbers, followed by `which` as
32-bit numbers. NaN and infinities are stored like other values.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice
from typing import TypeVar

assert sys.byteorder == "little", "blocks are stored in native byte order, which must be little-endian"
assert array("I").itemsize == 4
Number = TypeVar("Number", int, float)
WORD = 8
"""The size of a step, a time or a value, in bytes."""


@dataclass(frozen=True)
class Block:
    """The points of one request, in columns and in arrival order."""

    names: tuple[str, ...]
    steps: array[int]
    times: array[int]
    values: array[float]
    which: array[int] | None = None

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def title(self) -> str:
        """Return a list of metric names as JSON, which is its format in the database."""
        return title(self.names)

    def packed(self) -> bytes:
        parts = [self.steps.tobytes(), self.times.tobytes(), self.values.tobytes()]
        return b"".join(parts if self.which is None else [*parts, self.which.tobytes()])

    def metrics(self) -> Iterator[str]:
        """Yield the metric name of each point, in arrival order."""
        if self.which is None:
            return islice(cycle(self.names), len(self))
        return map(self.names.__getitem__, self.which)

    def rows(self) -> Iterator[tuple[str, int, int, float]]:
        """Yield (name, step, time_ms, value) of each point."""
        return zip(self.metrics(), self.steps, self.times, self.values, strict=True)

    def places(self, name: int) -> Sequence[int]:
        """Return the indexes of a metric's points in the block.

        `name` is the index of the metric in `names`.
        """
        if self.which is None:
            return range(name, len(self), len(self.names))
        return [at for at, column_name in enumerate(self.which) if column_name == name]


EMPTY = Block((), array("q"), array("q"), array("d"))


def title(names: Sequence[str]) -> str:
    return json.dumps(names, ensure_ascii=False, separators=(",", ":"))


def shape_of(db: sqlite3.Connection, run: int, title: str) -> int:
    """Return the id of the row in the `shapes` table that contains the run's list of metric names `title`.

    Insert the row if it does not exist.
    """
    db.execute("INSERT OR IGNORE INTO shapes (run_id, names) VALUES (?, ?)", (run, title))
    query = "SELECT id FROM shapes WHERE run_id = ? AND names = ?"
    shape: int = db.execute(query, (run, title)).fetchone()[0]
    return shape


def of_rows(rows: Sequence[tuple[str, int, int, float]]) -> Block:
    """Return a block with the given (name, step, time_ms, value) rows."""
    places: dict[str, int] = {}
    which = array("I", [places.setdefault(row[0], len(places)) for row in rows])
    return Block(
        tuple(places),
        array("q", [row[1] for row in rows]),
        array("q", [row[2] for row in rows]),
        array("d", [row[3] for row in rows]),
        None if in_turn(which, len(places)) else which,
    )


def of_lines(steps: array[int], times: array[int], data: Sequence[dict[str, float]]) -> Block:
    """Return a block with the points from several ingest lines.

    Each line has a step, a client time, and values by metric name.
    """
    values = array("d", chain.from_iterable(map(dict.values, data)))
    shapes = set(map(tuple, data))
    if len(shapes) == 1:
        names: tuple[str, ...] = shapes.pop()
        return Block(names, repeated(steps, len(names)), repeated(times, len(names)), values)
    places: dict[str, int] = {}
    which = array("I", [places.setdefault(name, len(places)) for line in data for name in line])
    return Block(
        tuple(places),
        array("q", [step for step, line in zip(steps, data, strict=True) for _ in line]),
        array("q", [time for time, line in zip(times, data, strict=True) for _ in line]),
        values,
        None if in_turn(which, len(places)) else which,
    )


def in_turn(which: array[int], names: int) -> bool:
    """Return whether the metrics take turns in the order of their indexes, with the same number of points
    each.

    `which` contains the index of each point's metric.
    """
    return names == 0 or (
        len(which) % names == 0 and array("I", range(names)) * (len(which) // names) == which
    )


def repeated(column: array[int], times: int) -> array[int]:
    """Return a column in which each value is repeated `times` times."""
    if times == 1:
        return column
    result = array("q", bytes(WORD * len(column) * times))
    for at in range(times):
        result[at::times] = column
    return result


def unpacked(names: Sequence[str], points: int, packed: bytes) -> Block:
    """Decode a block of `points` points from the packed bytes in the database."""
    steps, times, values = array("q"), array("q"), array("d")
    end = WORD * points
    steps.frombytes(packed[:end])
    times.frombytes(packed[end : 2 * end])
    values.frombytes(packed[2 * end : 3 * end])
    rest = packed[3 * end :]
    return Block(tuple(names), steps, times, values, array("I", rest) if rest else None)


def extend(into: array[Number], column: array[Number], places: Sequence[int]) -> None:
    """Append the numbers of `column` at the indexes `places` to `into`."""
    if isinstance(places, range):
        into.extend(column[places.start :: places.step])
    else:
        into.extend(array(column.typecode, [column[at] for at in places]))
