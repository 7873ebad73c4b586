"""Sorts of `list_runs` by what the database does not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from harness.tracker.shared.requests import Refused


def sorted_runs(found: list[Facts], sort: str) -> list[Facts]:
    """Sort by `[+|-]field`. A run without the field is last both ways. Raises Refused 400, Slow."""
    field = sort.lstrip("+- ")
    down = sort.startswith("-")
    family, _, rest = field.partition(".")
    check_path(rest)
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
        number = None if name in {"name", "status", *TIMES} else number_of(seen)
        return (0, number, "") if number is not None else (1, 0.0, text_of(seen))

    there = [run for run in found if read_(run) is not None]
    there.sort(key=lambda run: (key(run), run.row["id"]), reverse=down)
    return there + [run for run in found if read_(run) is None]
