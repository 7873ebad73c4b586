"""Show the results of a matrix as text: a grid for two packages, otherwise a list of cells."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from typing import Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from harness.versions.matrix_results import CellResult, Document, Status

MARKS: Final[dict[Status, str]] = {
    "passed": "✓",
    "failed": "✗",
    "expected failure": "✓",
    "unexpected pass": "!",
    "flaky": "~",
    "not run": "·",
}
STYLES: Final[dict[Status, str]] = {
    "passed": "green",
    "failed": "bold red",
    "expected failure": "green",
    "unexpected pass": "bold yellow",
    "flaky": "bold yellow",
    "not run": "dim",
}
MAX_COLUMNS: Final = 8


@dataclass(frozen=True)
class Grid:
    """The cells of a matrix with two packages, arranged in rows and columns."""

    row_package: str
    column_package: str
    columns: list[str]
    rows: dict[str, list[CellResult | None]]
    """Maps each row's version to the cells in the row. None means that the matrix lacks the cell."""


def grid(document: Document) -> Grid | None:
    """Return the grid, or None if the matrix does not have exactly two packages or has too many columns.

    The rows are the versions of the package that has more versions.
    """
    if len(document.axes) != 2:
        return None
    row_name, column_name = sorted(document.axes, key=lambda name: -len(document.axes[name]))
    cells = {(cell.versions[row_name], cell.versions[column_name]): cell for cell in document.cells}
    columns = [*dict.fromkeys(column for _, column in cells)]
    if len(columns) > MAX_COLUMNS:
        return None
    rows = dict.fromkeys(row for row, _ in cells)
    return Grid(
        row_name,
        column_name,
        columns,
        {row: [cells.get((row, column)) for column in columns] for row in rows},
    )


def word(cell: CellResult) -> str:
    """Return the result of a cell in a few words."""
    last = cell.shown
    if last is None:
        return "not run"
    result = " ".join(filter(None, [last.result, last.cause]))
    if cell.status == "flaky":
        expected_count = sum(cell.is_expected(outcome) for outcome in cell.outcomes)
        return f"flaky: {len(cell.outcomes) - expected_count} of {len(cell.outcomes)} {result}"
    if cell.status == "expected failure":
        return f"{result}, as expected"
    if cell.expected is not None:
        return f"{result} instead of {cell.expected.outcome}"
    return result


def render(document: Document, running: dict[int, float] | None = None) -> RenderableType:
    """Return the results for a terminal.

    While the matrix runs, `running` contains the start time of each launch in progress, keyed by cell number.
    """
    started_at = {id(document.cells[number]): start for number, start in (running or {}).items()}

    def text(cell: CellResult | None) -> Text:
        if cell is None:
            return Text("", style="dim")
        if id(cell) in started_at:
            return Text(f"… {time.monotonic() - started_at[id(cell)]:.0f} s", style="cyan")
        if running is not None and cell.status == "not run":
            return Text("· waiting", style=STYLES[cell.status])
        return Text(f"{MARKS[cell.status]} {word(cell)}", style=STYLES[cell.status])

    table = Table(box=None, pad_edge=False)
    if (layout := grid(document)) is not None:
        table.add_column(f"{layout.row_package} \\ {layout.column_package}")
        for column in layout.columns:
            table.add_column(column, overflow="fold")
        for row, cells in layout.rows.items():
            table.add_row(row, *map(text, cells))
    else:
        for name in document.axes:
            table.add_column(name, overflow="fold")
        table.add_column("result", overflow="fold")
        for cell in document.cells:
            table.add_row(*(cell.versions[name] for name in document.axes), text(cell))
    return table


def show(document: Document, console: Console) -> None:
    """Print the results, and the explanation of each cell that did not pass."""
    console.print(render(document))
    for cell in document.cells:
        if cell.status not in ("passed", "not run") and (outcome := cell.shown) is not None:
            console.print(Text(f"{MARKS[cell.status]} {cell.name}: {word(cell)}", style=STYLES[cell.status]))
            console.print(Text(f"  {outcome.explanation}"), soft_wrap=True)
            if path := outcome.report or outcome.bundle or outcome.log:
                console.print(Text(f"  {path}"), soft_wrap=True)
    for name, reason in document.excluded.items():
        console.print(Text(f"· {name}: {reason}", style="dim"))
    for note in document.notes:
        console.print(Text(f"! {note}", style="yellow"))
    for command in document.bisects:
        console.print(
            Text(f"→ to find the version that causes the failure: {shlex.join(command)}"), soft_wrap=True
        )
    style = "bold red" if document.exit_code else "bold green"
    parts = filter(None, [document.summary, document.others, f"in {document.seconds:.0f} s"])
    console.print(Text(" ".join(parts), style=style))
