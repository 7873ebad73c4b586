"""Run `harness soak`: prepare the cluster, soak, show the result."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness import run as running
from harness.core import processes
from harness.launch.konduktor.job_file import JobFile
from harness.provision import lifecycle
from harness.settings import Settings
from harness.soak import table as writing
from harness.soak.soak import Result, Soak

Progress = Callable[[str], None]


def soak(
    launches: int,
    settings: Settings,
    job: Path,
    parallel: int,
    table: Path | None,
    progress: Progress,
) -> Result:
    """Soak on one cluster. It is created when needed, and deleted afterwards unless it is kept.

    Raises UsageError before anything is created. When the soak is stopped, the ledger holds what was done.
    """
    JobFile.load(job)
    name = f"soak-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    folder = settings.runs_dir.absolute() / name
    with processes.signals_as_interrupt():
        ready = running.up(settings, progress)
        try:
            progress(f"ledger {folder / 'ledger.jsonl'}")
            soak = Soak(ready, settings, job, folder, parallel)
            result = soak.run(launches, progress)
            if table is not None:
                writing.write(table, result, soak.ledger.entries, ready.versions)
            return result
        finally:
            lifecycle.leave(settings, progress, ready)


def show(result: Result, console: Console) -> None:
    """Print the summary for people."""
    found = result.numbers
    mark = "✓" if result.clean else "✗"
    console.print(
        f"{mark} {found.passed} of {result.asked} launches PASS, {result.parallel} at a time, "
        f"{result.seconds:.0f} s in all, {found.retries} retries",
        style="bold green" if result.clean else "bold red",
    )
    for verdict, count in found.verdicts.items():
        console.print(f"  {count:4} {verdict}")
    times = Table(box=None, pad_edge=False)
    for column in ("seconds", "p50", "p90", "p99", "max"):
        times.add_column(column)
    for name, values in found.seconds.items():
        times.add_row(name, *(f"{value:.1f}" for value in values.values()))
    console.print(times)
    growth = Table(box=None, pad_edge=False)
    for column in ("", "leak check", "before", "after", "explained"):
        growth.add_column(column, overflow="fold")
    for each in result.growth:
        growth.add_row("✗" if each.leak else "✓", each.what, each.before, each.after, each.allowed)
    console.print(growth)
    for leak in result.leaks:
        console.print(f"leak  {leak}", style="bold red")
    console.print(f"ledger  {result.folder}/ledger.jsonl", soft_wrap=True)
