"""Filters for `list_runs`, in Pluto's filter language, which is the same as wandb's.

A filter is evaluated in Python for each run and not in SQL, because a filter can refer to columns, JSON
fields and the latest values of metrics.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import re2

from harness.tracker.query.run_facts import (
    COLUMNS,
    DOCUMENTS,
    METRICS,
    TIMES,
    Facts,
    check_path,
    number_of,
    text_of,
)
from harness.tracker.shared.requests import Refused, loads

DEPTH = 50
TERMS = 500
PATTERNS = 20
"""The maximum number of `$regex` operators in a filter."""
MAX_PATTERN = 200
MAX_PATTERN_BYTES = 1 << 20
"""The maximum memory for one compiled pattern, in bytes."""
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
"""Maps the lower-case name of a run state in wandb or Pluto to Pluto's state."""
Test = Callable[["Facts"], bool]


def read(text: str) -> Test:
    """Parse a filter in JSON, and return a function that tests a run.

    Raises Refused 400 if the filter is invalid.
    """
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
            raise Refused(400, f"filter: nested deeper than {DEPTH} levels")
        if not isinstance(tree, dict):
            raise Refused(400, f"filter: expected an object, not {type(tree).__name__}")
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
            combine = all if key == "$and" else any
            return lambda run: combine(test(run) for test in tests)
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
    """Return a function that tests one field. If the filter has several operators, all of them must match."""
    conditions = (
        value if isinstance(value, dict) and any(k.startswith("$") for k in value) else {"$eq": value}
    )
    for name in conditions:
        if name not in OPERATORS:
            raise Refused(400, f"filter: {field[:80]}: {name[:40]} is not one of {', '.join(OPERATORS)}")
    family, _, rest = field.partition(".")
    check_path(rest)
    name = COLUMNS.get(field, field)
    if name in {"status", "name", "tags"}:
        tests = [_column(name, operation, operand) for operation, operand in conditions.items()]
    elif name in TIMES:
        tests = [_time(name, operation, operand) for operation, operand in conditions.items()]
    elif family in DOCUMENTS and rest:
        tests = [_document(family, rest, operation, operand) for operation, operand in conditions.items()]
    elif family in METRICS and rest:
        tests = [_metric(rest, operation, operand) for operation, operand in conditions.items()]
    else:
        raise Refused(400, f"filter: unknown field {field[:80]!r}")
    return lambda run: all(test(run) for test in tests)


def _column(name: str, operation: str, operand: Any) -> Test:
    if name == "status":
        if operation not in {"$eq", "$ne", "$in", "$nin"}:
            raise Refused(400, f"filter: status does not support {operation}")
        states = {_state(one) for one in _list(operand, operation)}
        return lambda run: (run.column("status") in states) == (operation in {"$eq", "$in"})
    if name == "tags":
        if operation not in {"$eq", "$ne", "$in", "$nin"}:
            raise Refused(400, f"filter: tags does not support {operation}")
        tags = {str(one) for one in _list(operand, operation)}
        return lambda run: (
            (not tags.isdisjoint(json.loads(run.column("tags")))) == (operation in {"$eq", "$in"})
        )
    # When Pluto searches in names, it treats the pattern as literal text and ignores case.
    if operation == "$regex":
        part = str(operand).lower()
        return lambda run: part in run.column("name").lower()
    if operation in ORDER:
        raise Refused(400, f"filter: name does not support {operation}")
    names = {str(one) for one in _list(operand, operation)}
    return lambda run: (run.column("name") in names) == (operation in {"$eq", "$in"})


def _state(value: Any) -> str:
    state = STATES.get(str(value).lower())
    if state is None:
        raise Refused(400, f"filter: unknown state {str(value)[:40]!r}; expected one of {', '.join(STATES)}")
    return state


def _time(name: str, operation: str, operand: Any) -> Test:
    if operation not in {*ORDER, "$eq"} or (operation == "$eq" and name == "heartbeat_at"):
        raise Refused(400, f"filter: {name} does not support {operation}")
    moment = _moment(str(operand))
    if moment is None:
        raise Refused(400, f"filter: {name}: expected a time such as 2026-01-31T12:00:00Z")
    compare: Callable[[Any, Any], bool] = ORDER.get(operation, operator.eq)

    def test(run: Facts) -> bool:
        time = _moment(run.column(name) or "")
        return time is not None and compare(time, moment)

    return test


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _pattern(text: str) -> Any:
    """Compile a client's regular expression with RE2, which matches in linear time.

    Raises Refused 400 if the expression is invalid.
    """
    if len(text) > MAX_PATTERN:
        raise Refused(400, f"filter: $regex: a pattern can have at most {MAX_PATTERN} characters")
    options = re2.Options()
    options.log_errors = False
    options.dot_nl = True
    options.max_mem = MAX_PATTERN_BYTES
    try:
        return re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else error
        raise Refused(400, f"filter: $regex: {reason}") from None


def _document(family: str, path: str, operation: str, operand: Any) -> Test:
    if operation == "$regex":
        pattern = _pattern(str(operand))

        def matches(run: Facts) -> bool:
            value = run.value(family, path)
            return value is not None and bool(pattern.search(text_of(value).encode(errors="replace")))

        return matches
    if operation in ORDER:
        number = number_of(operand)
        if number is None:
            raise Refused(400, f"filter: {family}.{path[:80]}: {operation} expects a number")

        def ordered(run: Facts) -> bool:
            value = number_of(run.value(family, path))
            return value is not None and ORDER[operation](value, number)

        return ordered
    values = [
        number_of(one) if number_of(one) is not None else text_of(one) for one in _list(operand, operation)
    ]

    def equal(run: Facts) -> bool:
        value = run.value(family, path)
        number = number_of(value)
        return ((text_of(value) if number is None else number) in values) == (operation in {"$eq", "$in"})

    return equal


def _metric(name: str, operation: str, operand: Any) -> Test:
    number = number_of(operand)
    if operation not in {*ORDER, "$eq", "$ne"} or number is None:
        raise Refused(400, f"filter: summaryMetrics.{name[:80]}: expected a number to compare with")
    compare: Callable[[Any, Any], bool] = ORDER.get(operation) or (
        operator.eq if operation == "$eq" else operator.ne
    )

    def test(run: Facts) -> bool:
        value = run.metric(name)
        return value is not None and compare(value, number)

    return test


def _list(value: Any, operation: str) -> list[Any]:
    if operation not in {"$in", "$nin"}:
        return [value]
    return value if isinstance(value, list) else [value]
