"""`harness soak`: prepare the cluster, run the launches, and show the result."""

from __future__ import annotations

import secrets
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness import run
from harness.context import RunContext
from harness.core.clock import CLOCK
from harness.launch.workload_file import load as load_workload
from harness.soak import table as writing
from harness.soak.soak import Result, Soak


def soak(
    launches: int,
    job: Path,
    parallel: int,
    table: Path | None,
    context: RunContext,
) -> Result:
    """Run a soak on one cluster. Create the cluster if necessary, and delete it afterwards unless it is kept.

    Raises UsageError for an invalid job, before anything is created. If the soak is stopped, the ledger
    contains all launches that have ended.
    """
    load_workload(job)
    name = f"soak-{CLOCK.stamp()}-{secrets.token_hex(2)}"
    folder = context.settings.runs_dir.absolute() / name
    with run.cluster(context) as ready:
        context.progress(f"ledger {folder / 'ledger.jsonl'}")
        soak = Soak(ready, context.settings, job, folder, parallel)
        result = soak.run(launches, context.progress)
        if table is not None:
            writing.write(table, result, soak.ledger.entries, ready.versions)
        return result


def show(result: Result, console: Console) -> None:
    """Print the summary as text."""
    numbers = result.numbers
    mark = "✓" if result.clean else "✗"
    console.print(
        f"{mark} {numbers.passed} of {result.asked} launches passed, {result.parallel} at a time, "
        f"in {result.seconds:.0f} s; requests retried: {numbers.retries}",
        style="bold green" if result.clean else "bold red",
    )
    for verdict, count in numbers.verdicts.items():
        console.print(f"  {count:4} {verdict}")
    times = Table(box=None, pad_edge=False)
    for column in ("seconds", "p50", "p90", "p99", "max"):
        times.add_column(column)
    for name, values in numbers.seconds.items():
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
