"""Write and read column files, which store large numbers of rows.

A rank's ground truth is written to a column file after the rank has ended. The tracker's points are written
as they arrive.
"""

from __future__ import annotations

import os
import re
import threading
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, repeat
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from harness.evidence.io.files import open_inside
from harness.evidence.schema.columns import Columns, ColumnsRecord, of_rows, unpacked
from harness.evidence.schema.ground_truth import TruthColumns, TruthLine, TruthRow
from harness.evidence.schema.point_rows import PointRows, of_points
from harness.evidence.schema.record import Record
from harness.evidence.schema.tracker import Point, PointColumns

TRUTH_LINES = 2_000
"""The minimum number of consecutive ground truth rows that are moved to a column file. Shorter sequences get
one JSON line per row, so that people can read them."""
POINT_LINES = 10_000
"""The number of points for which tracker/points.jsonl contains one JSON line each. All later points are moved
to the column file."""
MOST_ROWS = 65_536
"""The maximum number of rows per column record. A damaged byte then affects only the rows of one record."""
MOST_BUFFERED = 500_000
"""The maximum number of points in the write buffer. This many points take up about 20 MB."""
Put = Callable[[bytes], int]
"""A function that appends bytes to a file and returns the offset at which they were written."""


def _fields(columns: Columns, path: str, append: Put) -> dict[str, Any]:
    """Append the columns to the column file at `path`, and return the fields of the JSON record that refers
    to them."""
    data = columns.packed()
    return {
        "file": path,
        "offset": append(data),
        "count": len(columns),
        "names": list(columns.names),
        "in_turn": columns.which is None,
        "crc32": zlib.crc32(data),
    }


def in_columns(
    lines: Iterable[TruthLine], path: str, append: Put, least: int = TRUTH_LINES
) -> Iterator[TruthLine | TruthColumns]:
    """Yield a rank's ground truth lines, with each sequence of `least` or more rows replaced by column
    records."""
    rows: list[TruthRow] = []
    for line in lines:
        if isinstance(line, TruthRow):
            rows.append(line)
            if len(rows) < max(MOST_ROWS, least):
                continue
        yield from _packed(rows, path, append, least)
        rows.clear()
        if not isinstance(line, TruthRow):
            yield line
    yield from _packed(rows, path, append, least)


def _packed(rows: list[TruthRow], path: str, append: Put, min_rows: int) -> Iterable[TruthRow | TruthColumns]:
    is_packed = len(rows) >= max(min_rows, 1)
    columns = of_rows([(row.metric, row.step, row.value, row.time_ms) for row in rows]) if is_packed else None
    return list(rows) if columns is None else [TruthColumns(**_fields(columns, path, append))]


@dataclass
class _Sender:
    """Buffered points from one sender."""

    rows: list[tuple[str, int, float, int]] = field(default_factory=list)
    received: list[tuple[int, str]] = field(default_factory=list)
    """Pairs of (number of consecutive points, time at which the tracker received them)."""

    def extend(self, rows: PointRows) -> None:
        self.rows.extend(zip(rows.metrics, rows.steps, rows.values, rows.times_ms, strict=True))
        for at, group in groupby(rows.received_at):
            count = sum(1 for _ in group)
            if self.received and self.received[-1][1] == at:
                self.received[-1] = self.received[-1][0] + count, at
            else:
                self.received.append((count, at))


Whose = tuple[int, str | None, str | None, str | None]
"""The origin of a point: (run, sender, peer, launch)."""


@dataclass
class PointWriter:
    """Writes the tracker's first points as JSON lines, and all later points to a column file, by sender.

    A metric's points keep their arrival order, because the later of two points with the same step takes
    precedence. Therefore, if a second sender sends points of the same metric, the first sender's buffered
    points are written first.
    """

    line: Callable[[Record], None]
    """A function that appends a record to tracker/points.jsonl."""
    path: str
    put: Put
    lines: int = POINT_LINES
    _count: int = 0
    _waiting: dict[Whose, _Sender] = field(default_factory=dict)
    _buffered: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _of: dict[tuple[int, str], Whose] = field(default_factory=dict)
    """Maps (run, metric) to the sender of the metric's buffered points."""

    def add(self, point: Point) -> None:
        """Add the next point. Points must be added in arrival order."""
        self.extend(*of_points([point]))

    def extend(self, rows: PointRows) -> None:
        """Add the next points. Points must be added in arrival order."""
        with self._lock:
            if (alone := self.lines - self._count) > 0:
                self._alone(rows.before(alone))
                rows = rows.after(alone)
            if _fit(rows.steps) and _fit(rows.times_ms):
                self._extend(rows)
                return
            for one in chain.from_iterable(of_points([record]) for record in rows.records()):
                (self._extend if _fit((*one.steps, *one.times_ms)) else self._alone)(one)

    def _alone(self, rows: PointRows) -> None:
        """Write one JSON line per point, after any buffered points."""
        self._count += len(rows)
        self._flush()
        for record in rows.records():
            self.line(record)

    def _extend(self, rows: PointRows) -> None:
        """Add points to their sender's buffer."""
        self._count += len(rows)
        sender_key: Whose = rows.run_id, rows.sender, rows.peer, rows.launch
        while len(rows):
            room = MOST_BUFFERED - self._buffered
            fitting, rows = rows.before(room), rows.after(room)
            metrics = set(fitting.metrics)
            if any(self._of.get((rows.run_id, metric), sender_key) != sender_key for metric in metrics):
                self._flush()
            self._of.update(dict.fromkeys([(rows.run_id, metric) for metric in metrics], sender_key))
            self._waiting.setdefault(sender_key, _Sender()).extend(fitting)
            self._buffered += len(fitting)
            if self._buffered >= MOST_BUFFERED:
                self._flush()

    def flush(self) -> None:
        """Write all buffered points."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        for (run, sender, peer, launch), waiting in self._waiting.items():
            columns = of_rows(waiting.rows)
            assert columns is not None
            self.line(
                PointColumns(
                    **_fields(columns, self.path, self.put),
                    run_id=run,
                    sender=sender,
                    peer=peer,
                    launch=launch,
                    received=waiting.received,
                )
            )
        self._waiting.clear()
        self._of.clear()
        self._buffered = 0


def _fit(numbers: Sequence[int]) -> bool:
    """Return whether all numbers fit in 64 bits."""
    try:
        array("q", numbers)
    except OverflowError:
        return False
    return True


PointPart = Point | tuple[PointColumns, Columns]
"""One line of tracker/points.jsonl. It is either a single point, or a column record with its columns, which
contain many points from one sender."""
_POINT: TypeAdapter[Point] = TypeAdapter(Point)
_POINT_COLUMNS: TypeAdapter[PointColumns] = TypeAdapter(PointColumns)
_COLUMNS = re.compile(rb'\{\s*"kind"\s*:\s*"columns"')


def point_record(line: bytes) -> Point | PointColumns:
    """Parse a line of tracker/points.jsonl. Raises ValidationError if the line is malformed."""
    if _COLUMNS.match(line):
        return _POINT_COLUMNS.validate_json(line)
    return _POINT.validate_json(line)


class ColumnFiles:
    """Reads the column files of one bundle.

    `damage(ref, reason)` is called for each column record that cannot be read.
    """

    def __init__(self, bundle: Path, damage: Callable[[str, str], None]) -> None:
        self._bundle = bundle
        self._damage = damage

    def read(self, ref: str, record: ColumnsRecord) -> Columns | None:
        """Return the columns to which the record at `ref` refers, or None if they cannot be read."""
        try:
            with open_inside(self._bundle, record.file) as file:
                file.seek(record.offset)
                file_size = os.fstat(file.fileno()).st_size
                return unpacked(record, file.read(min(record.size, file_size)))
        except (OSError, ValueError, OverflowError) as error:
            self._damage(ref, f"the rows in {record.file} cannot be read: {error}")
            return None


def truth_lines(parts: Iterable[tuple[int, TruthLine | Columns]]) -> Iterator[tuple[int, TruthLine]]:
    """Yield the numbered lines of ground truth, with each Columns object replaced by one TruthRow per row."""
    for number, part in parts:
        if isinstance(part, Columns):
            for metric, step, value, time_ms in part.rows():
                yield number, TruthRow(metric=metric, step=step, value=value, time_ms=time_ms)
        else:
            yield number, part


def points(parts: Iterable[tuple[int, PointPart]]) -> Iterator[tuple[int, Point]]:
    """Yield the tracker's points with line numbers, with each Columns object replaced by one Point per
    row."""
    for number, part in parts:
        if isinstance(part, Point):
            yield number, part
        else:
            for point in points_of(*part):
                yield number, point


def points_of(record: PointColumns, columns: Columns) -> Iterator[Point]:
    """Yield the points that a column record and its columns describe."""
    received = chain.from_iterable(repeat(at, count) for count, at in record.received)
    for (metric, step, value, time_ms), at in zip(columns.rows(), received, strict=False):
        yield Point(
            run_id=record.run_id,
            metric=metric,
            step=step,
            value=value,
            time_ms=time_ms,
            received_at=at,
            sender=record.sender,
            peer=record.peer,
            launch=record.launch,
        )
