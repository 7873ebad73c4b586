"""Read rows in columns, as they are or one by one. What cannot be read is told, and never raised."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from pathlib import Path

from pydantic import TypeAdapter

from harness.core.user_files import open_regular
from harness.evidence.columns import Columns, ColumnsRecord, unpacked
from harness.evidence.files import inside
from harness.evidence.tracker_records import Point, PointColumns
from harness.evidence.truth_records import TruthLine, TruthRow

PointPart = Point | tuple[PointColumns, Columns]
"""A point, or many of one sender."""
_POINT: TypeAdapter[Point] = TypeAdapter(Point)
_POINT_COLUMNS: TypeAdapter[PointColumns] = TypeAdapter(PointColumns)
_COLUMNS = re.compile(rb'\{\s*"kind"\s*:\s*"columns"')


def point_record(line: bytes) -> Point | PointColumns:
    """Return a line of tracker/points.jsonl. Raises ValidationError."""
    if _COLUMNS.match(line):
        return _POINT_COLUMNS.validate_json(line)
    return _POINT.validate_json(line)


class ColumnFiles:
    """The column files of one bundle. `damage(ref, reason)` is told what cannot be read."""

    def __init__(self, bundle: Path, damage: Callable[[str, str], None]) -> None:
        self._bundle = bundle
        self._damage = damage

    def read(self, ref: str, record: ColumnsRecord) -> Columns | None:
        """Return the rows that the record at `ref` stands for."""
        try:
            with open_regular(inside(self._bundle, record.file)) as file:
                file.seek(record.offset)
                there = os.fstat(file.fileno()).st_size
                return unpacked(record, file.read(min(record.size, there)))
        except (OSError, ValueError, OverflowError) as error:
            self._damage(ref, f"its rows in {record.file} cannot be read: {error}")
            return None


def truth_lines(parts: Iterable[tuple[int, TruthLine | Columns]]) -> Iterator[tuple[int, TruthLine]]:
    """Yield the same with a TruthRow for each row in columns."""
    for number, part in parts:
        if isinstance(part, Columns):
            for metric, step, value, time_ms in part.rows():
                yield number, TruthRow(metric=metric, step=step, value=value, time_ms=time_ms)
        else:
            yield number, part


def points(parts: Iterable[tuple[int, PointPart]]) -> Iterator[tuple[int, Point]]:
    """Yield the same with a Point for each row in columns."""
    for number, part in parts:
        if isinstance(part, Point):
            yield number, part
        else:
            for point in points_of(*part):
                yield number, point


def points_of(record: PointColumns, columns: Columns) -> Iterator[Point]:
    """Yield the points that a record stands for."""
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
