"""Print the differences between two bundles as tables.

The differences that matter come first, followed by those in the job, the timings and the events.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.report.diff.compare import NOISE_RATIO, NOISE_SECONDS, Change, Diff, PointCounts, Timing
from harness.report.terminal.console import MARK, STYLE

MOST = 30
"""Maximum number of rows per table. The JSON output contains all rows."""


def render(diff: Diff, console: Console) -> None:
    """Print the differences. Sections without differences are omitted."""
    result = "FAIL" if diff.matters else "PASS"
    result_text = "they differ" if diff.matters else "nothing that matters differs"
    console.print(Text(f"{MARK[result]} {result_text}", style=STYLE[result]))
    console.print(Text(f"A  {diff.a}\nB  {diff.b}"))
    for title, changes in (
        ("verdict", diff.verdict),
        ("checks", diff.checks),
        ("causes, and the checks that found them", diff.causes),
        ("versions", diff.versions),
    ):
        _section(console, title, ["", "A", "B"], map(_change, changes))
    _section(
        console,
        "points: how many logged points are in the run, and which steps differ",
        ["rank", "metric", "A", "B"],
        ([str(each.rank), each.metric, _counts_text(each.a), _counts_text(each.b)] for each in diff.points),
    )
    if diff.values_differ:
        scope = f"the first {len(diff.values)} of {diff.values_differ}"
        _section(
            console,
            f"different values for the same rank, metric and step: {scope}"
            + (" (ignored)" if diff.any_values else ""),
            ["rank", "metric", "step", "A", "B"],
            ([str(v.rank), v.metric, str(v.step), repr(v.a), repr(v.b)] for v in diff.values),
        )
    _section(console, "job", ["", "A", "B"], map(_change, diff.job))
    _section(
        console,
        f"seconds; ● marks a difference of more than {NOISE_SECONDS:g} s and a factor of {NOISE_RATIO:g}",
        ["", "stage", "A", "B", "B/A"],
        map(_timing, diff.timings),
        right=3,
    )
    _section(
        console,
        "events that occur in only one bundle",
        ["", "", "about", "A", "B"],
        ([e.type, e.reason, e.object, *(str(n) if n else "" for n in (e.a, e.b))] for e in diff.events),
        right=2,
    )


def _section(
    console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], right: int = 0
) -> None:
    """Print a section. The last `right` columns contain right-aligned numbers."""
    row_list = list(rows)
    if not row_list:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(
            column, overflow="fold", justify="right" if number >= len(columns) - right else "left"
        )
    for row in row_list[:MOST]:
        table.add_row(*map(Text, row))
    console.print()
    console.print(Text(title, style="bold"))
    console.print(table)
    if len(row_list) > MOST:
        console.print(Text(f"and {len(row_list) - MOST} more (use --json to see them)", style="dim"))


def _change(change: Change) -> list[str]:
    return [change.what, *("–" if side is None else side for side in (change.a, change.b))]


def _counts_text(counts: PointCounts | None) -> str:
    if counts is None:
        return "–"
    missing = f"; not {counts.missing}" if counts.missing else ""
    suffix = f"; only here {counts.only}" if counts.only else ""
    return f"{counts.kept} of {counts.logged}{missing}{suffix}"


def _timing(timing: Timing) -> list[str]:
    sides = ["–" if side is None else f"{side:.1f}" for side in (timing.a, timing.b)]
    noise = max(timing.a or 0, timing.b or 0) < NOISE_SECONDS
    ratio = "" if timing.ratio is None or noise else f"{timing.ratio:.2f}"
    return ["●" if timing.marked else "", timing.stage, *sides, ratio]
