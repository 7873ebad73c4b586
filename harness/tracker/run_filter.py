"""Filters and sorts of `list_runs`: the language is that of Pluto, which took it from wandb.

Evaluated row by row and not as SQL: a filter goes over columns, JSON and the last values of metrics.
"""

from __future__ import annotations

import json
import math
import operator
import sqlite3
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from harness.tracker import curves, patterns
from harness.tracker.bodies import loads
from harness.tracker.http import Refused
from harness.tracker.store import Slow

DEPTH = 50
TERMS = 500
PATTERNS = 20
"""Most `$regex` of a filter."""
PATH_MOST = 1024
PARTS_MOST = 64
"""Most characters and parts of a path such as config.optim.lr."""
OPERATORS = ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$regex")
ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
STATES = {
    "finished": "COMPLETED",
    "crashed": "FAILED",
    "killed": "TERMINATED",
    "preempted": "CANCELLED",
    "canceled": "CANCELLED",
    **{name.lower(): name for name in ("RUNNING", "COMPLETED", "FAILED", "TERMINATED", "CANCELLED")},
}
"""wandb's names of states, and Pluto's."""
COLUMNS = {
    "state": "status",
    "displayName": "name",
    "display_name": "name",
    "createdAt": "created_at",
    "updatedAt": "updated_at",
    "heartbeatAt": "heartbeat_at",
}
TIMES = ("created_at", "updated_at", "heartbeat_at")
DOCUMENTS = {"config": "config", "systemMetadata": "system_metadata"}
METRICS = ("summaryMetrics", "summary_metrics")
Test = Callable[["Facts"], bool]


class Facts:
    """A run as filters see it. What costs something is read when it is asked for, once."""

    def __init__(self, db: sqlite3.Connection, row: sqlite3.Row, late: float = math.inf) -> None:
        """`late`: from when on (time.monotonic) nothing that costs something is read any more."""
        self._db = db
        self._late = late
        self.row = row
        self._documents: dict[str, Any] = {}
        self._metrics: dict[str, float | None] = {}

    def column(self, name: str) -> Any:
        """Return a column. heartbeat_at is when the last point came, as in Pluto, else the last heartbeat."""
        if name != "heartbeat_at":
            return self.row[name]
        query = "SELECT max(last) FROM writers WHERE run_id = ? AND kind = 'metrics'"
        return self._db.execute(query, (self.row["id"],)).fetchone()[0] or self.row["heartbeat_at"]

    def value(self, document: str, path: str) -> Any:
        """Return what lies in the config or the metadata at a path with dots, or None. Raises Slow."""
        self._in_time()
        if document not in self._documents:
            self._documents[document] = json.loads(self.row[DOCUMENTS[document]] or "null")
        found = _at(self._documents[document], path.split("."))
        if found is None and path.endswith(".value"):  # as wandb writes the path
            found = _at(self._documents[document], path.removesuffix(".value").split("."))
        return found

    def metric(self, name: str) -> float | None:
        """Return the last value of a metric, or None. Raises Slow."""
        self._in_time()
        if name not in self._metrics:
            found = curves.last(self._db, self.row["id"], name)
            self._metrics[name] = found[1] if found else None
        return self._metrics[name]

    def _in_time(self) -> None:
        if time.monotonic() > self._late:
            raise Slow


def read(text: str) -> Test:
    """Return the test of a filter that came as JSON. Raises Refused 400 with what is wrong in it."""
    try:
        tree = loads(text, constants=False)
    except (ValueError, RecursionError):
        raise Refused(400, "filter: expected JSON") from None
    return _Reader().node(tree, 0)


class _Reader:
    terms = 0
    patterns = 0

    def node(self, tree: Any, depth: int) -> Test:
        if depth > DEPTH:
            raise Refused(400, f"filter: nested deeper than {DEPTH}")
        if not isinstance(tree, dict):
            raise Refused(400, f"filter: expected an object, seen {type(tree).__name__}")
        tests = [self._entry(key, value, depth) for key, value in tree.items()]
        return lambda run: all(test(run) for test in tests)

    def _entry(self, key: str, value: Any, depth: int) -> Test:
        self.terms += 1
        if self.terms > TERMS:
            raise Refused(400, f"filter: more than {TERMS} terms")
        if key in {"$and", "$or"}:
            if not isinstance(value, list):
                raise Refused(400, f"filter: {key} expects a list")
            tests = [self.node(child, depth + 1) for child in value]
            whole = all if key == "$and" else any
            return lambda run: whole(test(run) for test in tests)
        if key == "$not":
            test = self.node(value, depth + 1)
            return lambda run: not test(run)
        if key.startswith("$"):
            raise Refused(400, f"filter: {key[:40]}: expected $and, $or or $not")
        if isinstance(value, dict) and "$regex" in value:
            self.patterns += 1
            if self.patterns > PATTERNS:
                raise Refused(400, f"filter: more than {PATTERNS} patterns")
        return _leaf(key, value)


def _leaf(field: str, value: Any) -> Test:
    """Return the test of one field. Several operators of one field must all hold."""
    wanted = value if isinstance(value, dict) and any(k.startswith("$") for k in value) else {"$eq": value}
    for name in wanted:
        if name not in OPERATORS:
            raise Refused(400, f"filter: {field[:80]}: {name[:40]} is none of {', '.join(OPERATORS)}")
    family, _, rest = field.partition(".")
    _check_path(rest)
    name = COLUMNS.get(field, field)
    if name in {"status", "name", "tags"}:
        tests = [_column(name, how, what) for how, what in wanted.items()]
    elif name in TIMES:
        tests = [_time(name, how, what) for how, what in wanted.items()]
    elif family in DOCUMENTS and rest:
        tests = [_document(family, rest, how, what) for how, what in wanted.items()]
    elif family in METRICS and rest:
        tests = [_metric(rest, how, what) for how, what in wanted.items()]
    else:
        raise Refused(400, f"filter: unknown field {field[:80]!r}")
    return lambda run: all(test(run) for test in tests)


def _check_path(path: str) -> None:
    if len(path) > PATH_MOST or path.count(".") >= PARTS_MOST:
        raise Refused(400, f"a path has at most {PATH_MOST} characters and {PARTS_MOST} parts")


def _column(name: str, how: str, what: Any) -> Test:
    if name == "status":
        if how not in {"$eq", "$ne", "$in", "$nin"}:
            raise Refused(400, f"filter: status does not take {how}")
        states = {_state(one) for one in _list(what, how)}
        return lambda run: (run.column("status") in states) == (how in {"$eq", "$in"})
    if name == "tags":
        if how not in {"$eq", "$ne", "$in", "$nin"}:
            raise Refused(400, f"filter: tags does not take {how}")
        tags = {str(one) for one in _list(what, how)}
        return lambda run: (not tags.isdisjoint(json.loads(run.column("tags")))) == (how in {"$eq", "$in"})
    if how == "$regex":  # Pluto looks for the text itself, in either case
        part = str(what).lower()
        return lambda run: part in run.column("name").lower()
    if how in ORDER:
        raise Refused(400, f"filter: name does not take {how}")
    names = {str(one) for one in _list(what, how)}
    return lambda run: (run.column("name") in names) == (how in {"$eq", "$in"})


def _state(value: Any) -> str:
    found = STATES.get(str(value).lower())
    if found is None:
        raise Refused(400, f"filter: unknown state {str(value)[:40]!r}; expected one of {', '.join(STATES)}")
    return found


def _time(name: str, how: str, what: Any) -> Test:
    if how not in {*ORDER, "$eq"} or (how == "$eq" and name == "heartbeat_at"):
        raise Refused(400, f"filter: {name} does not take {how}")
    moment = _moment(str(what))
    if moment is None:
        raise Refused(400, f"filter: {name}: expected a time such as 2026-01-31T12:00:00Z")
    compare: Callable[[Any, Any], bool] = ORDER.get(how, operator.eq)

    def test(run: Facts) -> bool:
        seen = _moment(run.column(name) or "")
        return seen is not None and compare(seen, moment)

    return test


def _moment(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _document(family: str, path: str, how: str, what: Any) -> Test:
    if how == "$regex":
        try:
            pattern = patterns.read(str(what))
        except ValueError as error:
            raise Refused(400, f"filter: $regex: {error}") from None

        def fits(run: Facts) -> bool:
            seen = run.value(family, path)
            return seen is not None and pattern.found(_text(seen))

        return fits
    if how in ORDER:
        number = _number(what)
        if number is None:
            raise Refused(400, f"filter: {family}.{path[:80]}: {how} expects a number")

        def ordered(run: Facts) -> bool:
            seen = _number(run.value(family, path))
            return seen is not None and ORDER[how](seen, number)

        return ordered
    values = [_number(one) if _number(one) is not None else _text(one) for one in _list(what, how)]

    def equal(run: Facts) -> bool:
        seen = run.value(family, path)
        number = _number(seen)
        return ((_text(seen) if number is None else number) in values) == (how in {"$eq", "$in"})

    return equal


def _metric(name: str, how: str, what: Any) -> Test:
    number = _number(what)
    if how not in {*ORDER, "$eq", "$ne"} or number is None:
        raise Refused(400, f"filter: summaryMetrics.{name[:80]}: expected a number to compare with")
    compare: Callable[[Any, Any], bool] = ORDER.get(how) or (operator.eq if how == "$eq" else operator.ne)

    def test(run: Facts) -> bool:
        seen = run.metric(name)
        return seen is not None and compare(seen, number)

    return test


def _list(value: Any, how: str) -> list[Any]:
    if how not in {"$in", "$nin"}:
        return [value]
    return value if isinstance(value, list) else [value]


def _number(value: Any) -> float | None:
    """Return a number, also one in a string, as in Pluto. None: it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value) if not isinstance(value, str) or len(value) < 40 else math.nan
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _at(value: Any, path: list[str]) -> Any:
    """Return what lies at a path. A key may have dots itself."""
    if not path:
        return value
    if isinstance(value, dict):
        for parts in range(1, len(path) + 1):
            key = ".".join(path[:parts])
            if key in value and (found := _at(value[key], path[parts:])) is not None:
                return found
    return None


def sorted_runs(found: list[Facts], sort: str) -> list[Facts]:
    """Sort by `[+|-]field`. A run without the field is last both ways. Raises Refused 400, Slow."""
    field = sort.lstrip("+- ")
    down = sort.startswith("-")
    family, _, rest = field.partition(".")
    _check_path(rest)
    name = COLUMNS.get(field, field)
    read_: Callable[[Facts], Any]
    if name in {"name", "status", *TIMES}:
        read_ = lambda run: run.column(name)  # noqa: E731
    elif family in DOCUMENTS and rest:
        read_ = lambda run: run.value(family, rest)  # noqa: E731
    elif family in METRICS and rest:
        read_ = lambda run: run.metric(rest)  # noqa: E731
    else:
        known = "createdAt, updatedAt, heartbeat_at, name, status, config.*, systemMetadata.*"
        raise Refused(400, f"sort: this server knows {known}, summary_metrics.*")

    def key(run: Facts) -> tuple[Any, ...]:
        seen = read_(run)
        number = None if name in {"name", "status", *TIMES} else _number(seen)
        return (0, number, "") if number is not None else (1, 0.0, _text(seen))

    there = [run for run in found if read_(run) is not None]
    there.sort(key=lambda run: (key(run), run.row["id"]), reverse=down)
    return there + [run for run in found if read_(run) is None]
