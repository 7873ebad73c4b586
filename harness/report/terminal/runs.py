"""List existing bundles as a table or as rows for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.core import disk_use
from harness.evidence.io.runs_folder import Past, State
from harness.report.amounts import amount
from harness.report.terminal.console import STYLE

WIDE = 130
"""Minimum width of a terminal, in characters, for showing all columns of the table."""


class Row(BaseModel):
    """A row for one bundle. If no verdict was recorded, `verdict` is "none" and `state` shows why."""

    bundle: str
    """The bundle's path, in a form that other commands accept."""
    name: str
    started_at: str
    job: str
    state: State
    verdict: str
    cause: str | None
    seconds: float | None
    """The duration in seconds, or None if the end was not recorded."""
    bytes: int


def row(one: Past) -> Row:
    verdict = one.verdict
    return Row(
        bundle=str(one.path),
        name=one.path.name,
        started_at=one.started.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        job=one.job,
        state=one.state,
        verdict=verdict.verdict if verdict else "none",
        cause=verdict.cause if verdict else None,
        seconds=one.seconds,
        bytes=disk_use.bytes_used(one.path),
    )


def show(rows: Sequence[Row], console: Console) -> None:
    """Print a table of bundles in the given order, with the total size at the bottom.

    On a narrow terminal, the columns for the time and the job are omitted. The bundle's name also contains
    the time.
    """
    is_wide = console.width >= WIDE
    table = Table(box=None, pad_edge=False, show_footer=len(rows) > 1)
    table.add_column("bundle", f"{len(rows)} bundles", no_wrap=True)
    if is_wide:
        table.add_column("when (UTC)", no_wrap=True)
        table.add_column("job", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("cause", overflow="fold")
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("on disk", amount(sum(each.bytes for each in rows)), justify="right", no_wrap=True)
    for each in rows:
        word = each.verdict if each.verdict in STYLE else each.state
        table.add_row(
            each.name,
            *((each.started_at[:19].replace("T", " "), each.job) if is_wide else ()),
            Text(word, style=STYLE.get(word, "dim")),
            each.cause or "",
            "" if each.seconds is None else f"{each.seconds:.0f}",
            amount(each.bytes),
        )
    console.print(table)
