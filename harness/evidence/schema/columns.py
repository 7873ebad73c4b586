"""A binary column format for rows logged by a rank or received by the tracker.

With one JSON line per row, parsing would be too slow to judge a launch with hundreds of ranks in seconds. If
there are more than a few thousand rows, the writer stores them in a binary file next to the JSON file. One
JSON line (`ColumnsRecord`) contains the rows' offset in the binary file, the names of their metrics and a
checksum. For each such line, the binary file contains the steps, the client times and the values as
little-endian 64-bit numbers. Unless the metrics alternate in a fixed order, these are followed by the index
in `names` of each row's metric, as a 32-bit number (docs/decisions/022-columns.md).
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Literal

from harness.evidence.schema.record import Record

WORD, SHORT = 8, 4
"""The size of a step, a time or a value (WORD), and the size of a metric index (SHORT), in bytes."""
assert array("I").itemsize == SHORT


class ColumnsRecord(Record):
    """A JSON record that represents `count` rows in a column file."""

    kind: Literal["columns"] = "columns"
    file: str
    """The path of the column file within the bundle."""
    offset: int
    count: int
    names: list[str]
    in_turn: bool
    """Whether the metric of row i is `names[i % len(names)]`. If false, a fourth column contains the index of
    each row's metric."""
    crc32: int

    @property
    def size(self) -> int:
        """Return the number of bytes that the rows occupy in the column file."""
        return self.count * (3 * WORD + (0 if self.in_turn else SHORT))


Part = tuple[str, "array[int]", "array[float]", "array[int]"]
"""All rows of one metric, as (metric, steps, values, times)."""


@dataclass(frozen=True)
class Columns:
    """Rows in the order in which they were recorded.

    `which` contains the index of each row's metric. It is None if the metrics alternate in a fixed order.
    """

    names: Sequence[str]
    steps: array[int]
    times: array[int]
    values: array[float]
    which: array[int] | None = None

    def __len__(self) -> int:
        return len(self.steps)

    def metrics(self) -> Iterator[str]:
        """Yield the metric name of each row."""
        if self.which is None:
            return islice(cycle(self.names), len(self))
        return map(self.names.__getitem__, self.which)

    def rows(self) -> Iterator[tuple[str, int, float, int]]:
        """Yield (metric, step, value, time_ms) of each row."""
        return zip(self.metrics(), self.steps, self.values, self.times, strict=True)

    def series(self) -> Iterator[Part]:
        """Yield (metric, steps, values, times) for each metric that has rows."""
        for place, name in enumerate(self.names):
            if self.which is None:
                part = slice(place, None, len(self.names))
                metric = name, self.steps[part], self.values[part], self.times[part]
            else:
                own = [at for at, metric_place in enumerate(self.which) if metric_place == place]
                metric = (
                    name,
                    array("q", map(self.steps.__getitem__, own)),
                    array("d", map(self.values.__getitem__, own)),
                    array("q", map(self.times.__getitem__, own)),
                )
            if metric[1]:
                yield metric

    def packed(self) -> bytes:
        """Return the rows in the format of a column file."""
        parts: list[array[Any]] = [self.steps, self.times, self.values]
        parts += [] if self.which is None else [self.which]
        return b"".join(_little(part).tobytes() for part in parts)


def of_rows(rows: Sequence[tuple[str, int, float, int]]) -> Columns | None:
    """Convert (metric, step, value, time_ms) rows to columns. Returns None if an integer exceeds 64 bits."""
    places: dict[str, int] = {}
    which = array("I", [places.setdefault(row[0], len(places)) for row in rows])
    try:
        steps, times = array("q", [row[1] for row in rows]), array("q", [row[3] for row in rows])
    except OverflowError:
        return None
    in_turn = len(which) % len(places) == 0 and array("I", range(len(places))) * (len(which) // len(places))
    values = array("d", [row[2] for row in rows])
    return Columns(list(places), steps, times, values, None if in_turn == which else which)


def unpacked(record: ColumnsRecord, data: bytes) -> Columns:
    """Decode the rows of a column record.

    Raises ValueError if the data was truncated or changed after it was written.
    """
    if len(data) != record.size or zlib.crc32(data) != record.crc32:
        raise ValueError("the column data is truncated or corrupt")
    end = WORD * record.count
    steps, times, values = array("q"), array("q"), array("d")
    view = memoryview(data)
    steps.frombytes(view[:end])
    times.frombytes(view[end : 2 * end])
    values.frombytes(view[2 * end : 3 * end])
    which = None if record.in_turn else array("I", data[3 * end :])
    if which is not None and record.count and max(which) >= len(record.names):
        raise ValueError("a row belongs to a metric without a name")
    if record.in_turn and (not record.names or record.count % len(record.names)):
        raise ValueError("the number of rows is not a multiple of the number of metrics")
    return Columns(record.names, _little(steps), _little(times), _little(values), which and _little(which))


def _little(column: array[Any]) -> array[Any]:
    """Convert a column between native and little-endian byte order."""
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column
