"""List past bundles: a table for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.core import disk_use
from harness.evidence.io.folder import Past, State
from harness.report.amounts import amount
from harness.report.terminal.console import STYLE

WIDE = 130
"""Columns that need a wide terminal."""


class Row(BaseModel):
    """One bundle. `verdict` is "none" where none was recorded; `state` says why."""

    bundle: str
    """Its path, as the other commands take it."""
    name: str
    started_at: str
    job: str
    state: State
    verdict: str
    cause: str | None
    seconds: float | None
    """Seconds from start to end. None without an end."""
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
        bytes=disk_use.taken(one.path),
    )


def show(rows: Sequence[Row], console: Console) -> None:
    """Print a table in the given order, with the sum of sizes below. A narrow terminal leaves columns out; a
    bundle's name still tells its time.
    """
    wide = console.width >= WIDE
    made = Table(box=None, pad_edge=False, show_footer=len(rows) > 1)
    made.add_column("bundle", f"{len(rows)} bundles", no_wrap=True)
    if wide:
        made.add_column("when (UTC)", no_wrap=True)
        made.add_column("job", no_wrap=True)
    made.add_column("verdict", no_wrap=True)
    made.add_column("cause", overflow="fold")
    made.add_column("seconds", justify="right", no_wrap=True)
    made.add_column("on disk", amount(sum(each.bytes for each in rows)), justify="right", no_wrap=True)
    for each in rows:
        word = each.verdict if each.verdict in STYLE else each.state
        made.add_row(
            each.name,
            *((each.started_at[:19].replace("T", " "), each.job) if wide else ()),
            Text(word, style=STYLE.get(word, "dim")),
            each.cause or "",
            "" if each.seconds is None else f"{each.seconds:.0f}",
            amount(each.bytes),
        )
    console.print(made)
