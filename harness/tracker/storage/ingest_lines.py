"""Parse ingest lines, validate them as Pluto's ingest does, and store them with their sender.

Lines are processed in order, as in Pluto. The lines before an invalid line are stored, and the response is
422. Rows are stored even if their run does not exist. The audit view shows such rows as orphans.
"""

from __future__ import annotations

import math
import sqlite3
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from harness.tracker.shared import blocks
from harness.tracker.shared.requests import Sender, loads, now
from harness.tracker.storage import claims

MAX_INT = (1 << 63) - 1
"""SQLite's largest integer. Pluto accepts steps and times up to 2**64 - 1, which no client reaches."""

MAX_ROWS = 1_000_000
MAX_NAME_LENGTH = 1024
MAX_TEXT_LENGTH = 8 << 20
WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
Row = tuple[Any, ...]


@dataclass
class Lines:
    """The rows parsed from a request, up to the first invalid line, and the error in that line, if any."""

    rows: list[Row] = field(default_factory=list)
    lines: int = 0
    error: str | None = None


@dataclass
class Points:
    """The points parsed from a request, up to the first invalid line, and the error in that line, if any."""

    block: blocks.Block = blocks.EMPTY
    lines: int = 0
    error: str | None = None


class Line(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An ingest line of points in the usual format, in which all values are JSON numbers."""

    time: int | float
    step: int | float
    """The types of `time` and `step` include float, because a decoder for `int` alone would convert 1.0 to 1.
    `_at_once` rejects floats."""
    data: dict[str, float]


_decode = msgspec.json.Decoder(Line).decode


def read_points(body: bytes) -> Points:
    """Parse lines of points with the native parser if possible, and otherwise with `read`.

    A test compares both parsers (tests/unit/tracker/test_ingest.py). The native parser accepts nothing that
    `read` rejects, and returns the same values.
    """
    points = _at_once(body)
    if points is None:
        lines = read(body, quick_rows)
        points = Points(blocks.of_rows(lines.rows), lines.lines, lines.error)
    return points


def _at_once(body: bytes) -> Points | None:
    """Parse a body with the native parser. Return None if any line is not in the usual format."""
    try:
        lines = [_decode(line) for line in body.split(b"\n") if line]
        # A float raises TypeError here, and `read` then parses all lines instead.
        steps: array[int] = array("q", [line.step for line in lines])  # type: ignore[misc]
        times: array[int] = array("q", [line.time for line in lines])  # type: ignore[misc]
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError):
        return None
    if not lines or min(steps) < 0 or min(times) < 0:
        return None
    block = blocks.of_lines(steps, times, [line.data for line in lines])
    if len(block) > MAX_ROWS or not all(map(_is_name, block.names)):
        return None
    return Points(block, len(lines))


def quick_rows(line: bytes) -> list[Row]:
    """Return the rows of one line, parsed with the native parser if possible, and otherwise with
    `point_rows`."""
    try:
        one = _decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return point_rows(line)
    if (
        type(one.step) is int
        and type(one.time) is int
        and 0 <= one.step <= MAX_INT
        and 0 <= one.time <= MAX_INT
    ):
        return [(_name(name), one.step, one.time, value) for name, value in one.data.items()]
    return point_rows(line)


def read(body: bytes, rows_of: Callable[[bytes], list[Row]]) -> Lines:
    """Parse each line with `rows_of` until a line is invalid.

    `rows_of` raises ValueError for an invalid line.
    """
    result = Lines()
    for at, line in enumerate(body.split(b"\n"), 1):
        if not line or line.isspace():
            continue
        try:
            result.rows.extend(rows_of(line))
            if len(result.rows) > MAX_ROWS:
                raise ValueError(f"a request can have at most {MAX_ROWS} rows")
        except (ValueError, OverflowError, RecursionError) as error:
            result.error = f"line {at}: {error}"
            break
        result.lines += 1
    return result


def point_rows(text: bytes) -> list[Row]:
    """Parse a line `{"time", "step", "data": {name: value}}` into rows (name, step, time_ms, value)."""
    line = _object(text)
    _only(line, {"time", "step", "data"})
    time_ms, step, data = _whole(line, "time"), _whole(line, "step"), line.get("data")
    if not isinstance(data, dict):
        raise ValueError("data: expected an object of numbers")
    rows: list[Row] = []
    for name, value in data.items():
        rows.append((_name(name), step, time_ms, _number(name, value)))
    return rows


def _number(name: str, value: object) -> float:
    """Return a value as a float.

    A non-finite value can also be null or one of WORDS, as written by clients in other languages.
    """
    if type(value) is float or type(value) is int:
        return float(value)
    if value is None:
        return math.nan
    if isinstance(value, str) and value in WORDS:
        return WORDS[value]
    raise ValueError(f"data.{name[:80]}: expected a number")


def _is_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME_LENGTH and not name.isspace()


def _name(name: str) -> str:
    if not _is_name(name):
        raise ValueError(
            f"expected a name of 1 to {MAX_NAME_LENGTH} characters, not blank; found {name[:40]!r}"
        )
    return name


def log_rows(text: bytes) -> list[Row]:
    """Parse a log line into the row (time_ms, message, line_number, log_type)."""
    line = _object(text)
    _only(line, {"time", "message", "lineNumber", "logType", "step"})
    kind = line.get("logType") or "INFO"
    return [(_whole(line, "time"), _text(line, "message"), _whole(line, "lineNumber"), str(kind))]


def data_rows(text: bytes) -> list[Row]:
    """Parse a histogram, table, graph or string line into (time_ms, step, log_name, data_type, data)."""
    line = _object(text)
    _only(line, {"time", "data", "dataType", "logName", "step"})
    step = 0 if line.get("step") is None else _whole(line, "step")
    name, *texts = (_text(line, field) for field in ("logName", "dataType", "data"))
    return [(_whole(line, "time"), step, _name(name), *texts)]


def store_logs(db: sqlite3.Connection, sender: Sender, lines: Lines) -> None:
    request = store_request(db, "logs", sender, lines)
    db.executemany(
        "INSERT INTO logs (request_id, run_id, time_ms, message, line_number, log_type)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        [(request, sender.run_id, *row) for row in lines.rows],
    )


def store_data(db: sqlite3.Connection, sender: Sender, lines: Lines) -> None:
    request = store_request(db, "data", sender, lines)
    db.executemany(
        "INSERT INTO data (request_id, run_id, time_ms, step, log_name, data_type, data)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(request, sender.run_id, *row) for row in lines.rows],
    )


def store_request(db: sqlite3.Connection, kind: str, sender: Sender, lines: Lines) -> int:
    """Record a request's sender and receive time, even if the request has an invalid line.

    Return the request's id.
    """
    request = db.execute(
        "INSERT INTO requests (kind, run_id, run_header, sender, project, peer, received_at, rows, error,"
        " launch) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            kind,
            sender.run_id,
            sender.run_header,
            sender.name,
            sender.project,
            sender.peer,
            now(),
            len(lines.rows),
            lines.error,
            sender.launch,
        ),
    ).lastrowid
    assert request is not None
    claims.note(db, sender.run_id, kind, sender, len(lines.rows))
    return request


def _object(line: bytes) -> dict[str, Any]:
    document = loads(line)
    if not isinstance(document, dict):
        raise ValueError("expected a JSON object")
    return document


def _only(line: dict[str, Any], fields: set[str]) -> None:
    unknown = line.keys() - fields
    if unknown:
        raise ValueError(f"unknown field `{min(unknown)}`")


def _whole(line: dict[str, Any], name: str) -> int:
    value = line.get(name)
    if type(value) is not int or not 0 <= value <= MAX_INT:
        raise ValueError(f"{name}: expected an integer ≥ 0")
    return value


def _text(line: dict[str, Any], name: str) -> str:
    value = line.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name}: expected a string")
    if len(value) > MAX_TEXT_LENGTH:
        raise ValueError(f"{name}: longer than {MAX_TEXT_LENGTH} characters")
    return value
