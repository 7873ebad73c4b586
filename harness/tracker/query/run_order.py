"""Sort the runs of `list_runs` by fields that are not columns of the database."""

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


def sorted_runs(runs: list[Facts], sort: str) -> list[Facts]:
    """Return the runs sorted by `[+|-]field`. Runs without the field come last in both sort orders.

    Raises Refused 400 for an unknown field, and Slow if reading the field takes too long.
    """
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
        fields = "createdAt, updatedAt, heartbeat_at, name, status, config.*, systemMetadata.*"
        raise Refused(400, f"sort: this server supports {fields} and summary_metrics.*")

    def key(run: Facts) -> tuple[Any, ...]:
        value = read_(run)
        number = None if name in {"name", "status", *TIMES} else number_of(value)
        return (0, number, "") if number is not None else (1, 0.0, text_of(value))

    with_field = [run for run in runs if read_(run) is not None]
    with_field.sort(key=lambda run: (key(run), run.row["id"]), reverse=down)
    return with_field + [run for run in runs if read_(run) is None]
