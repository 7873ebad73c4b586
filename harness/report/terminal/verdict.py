"""Print the checks, followed by the verdict with its cause, explanation and next steps.

The verdict comes last, because a terminal shows the end of the output.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from harness.core.terminal_text import printable
from harness.evidence.schema.bundle import Stage, Verdict
from harness.judge.acceptance.fleet import Fleet
from harness.report.amounts import ranges
from harness.report.html import acceptance
from harness.report.html.attempts import HEADINGS, RankAttempt
from harness.report.html.netcheck import Matrix
from harness.report.html.page import REPORT
from harness.report.terminal.console import MARK, STYLE


def render(
    verdict: Verdict,
    stages: list[Stage],
    bundle: Path,
    console: Console,
    attempts: Sequence[RankAttempt] = (),
    netcheck: Matrix | None = None,
    accepted: Fleet | None = None,
) -> None:
    """Print a bundle's verdict. `attempts` contains the attempts of ranks that ran more than once."""
    style = STYLE[verdict.verdict]
    body = Text()
    body.append(verdict.explanation)
    if verdict.cause:
        ranks = f"  rank{'s' if len(verdict.ranks) > 1 else ''} {ranges(verdict.ranks)}"
        body.append(f"\n\ncause  {verdict.cause}", style="bold")
        body.append(ranks if verdict.ranks else "")
    for line in verdict.consequences:
        body.append(f"\n  then  {line}", style="dim")
    title = f"{MARK[verdict.verdict]} {verdict.verdict}"
    console.print(_checks(verdict))
    if attempts:
        console.print(_attempts(attempts))
    if netcheck:
        console.print(_matrix(netcheck))
    if accepted:
        console.print(accepted_table(accepted))
    if stages:
        times = "  ".join(f"{stage.name} {stage.seconds:.1f}s" for stage in stages)
        console.print(Text(times, style="dim"))
    console.print(Panel(body, title=title, title_align="left", border_style=style, style="", padding=(1, 2)))
    for label, text in _after(verdict, bundle):
        # Long lines are not wrapped, so that commands can be copied.
        console.print(Text(f"{label:8}  {text}"), soft_wrap=True)


def _after(verdict: Verdict, bundle: Path) -> Iterator[tuple[str, str]]:
    """Yield the evidence, next steps and hints as (label, text).

    In the texts, the bundle's path is written as the user specified it.
    """
    for line in verdict.evidence:
        yield "evidence", str(bundle / line)
    for line in verdict.next:
        text = line.replace(shlex.quote(str(bundle.absolute())), shlex.quote(str(bundle)))
        yield ("advice", text[2:]) if text.startswith("# ") else ("next", text)
    yield "bundle", str(bundle)
    if (bundle / REPORT).is_file():
        yield "report", str(bundle / REPORT)


def _checks(verdict: Verdict) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(width=1)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    by_explanation: dict[str, list[str]] = {}
    for check in verdict.checks:
        if check.result == "UNKNOWN" and check.cause is None:
            by_explanation.setdefault(check.explanation, []).append(check.name)
    for check in verdict.checks:
        name, explanation = check.name, check.explanation
        # Checks that were skipped for the same reason share one row, at the position of the first check.
        names = by_explanation.get(explanation, [])
        if len(names) > 1 and name in names:
            if name != names[0]:
                continue
            name, explanation = f"{len(names)} checks", f"{explanation}: {', '.join(names)}"
        if verdict.cause is not None and explanation == verdict.explanation:
            explanation = "see below"
        style = "dim" if check.result == "PASS" else ""
        table.add_row(
            Text(MARK[check.result], style=STYLE[check.result]), name, Text(explanation, style=style)
        )
    return table


def _attempts(attempts: Sequence[RankAttempt]) -> Table:
    """Return a table with one row per attempt. The `restarts` check shows why each attempt began."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in HEADINGS[:-1]:
        table.add_column(heading, overflow="fold")
    for one in attempts:
        table.add_row(*map(Text, one.cells()[:-1]))
    return table


def _matrix(matrix: Matrix) -> Table:
    """Return the netcheck matrix, with one row per sending pod and one column per receiving pod."""
    styles = {"good": "green", "bad": "bold red", "idle": "yellow", "self": "dim"}
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("from \\ to", justify="right")
    for row in matrix.rows:
        table.add_column(row.name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in matrix.rows:
        cells = [Text(square.text, style=styles[square.kind]) for square in row.squares]
        silent = [Text("not heard", style="yellow"), *[Text("")] * (len(matrix.rows) - 1)]
        table.add_row(Text(row.name), *(cells or silent), Text(row.place, style="dim"))
    return table


def accepted_table(fleet: Fleet) -> Table:
    """Return a table of the acceptance results.

    It contains the nodes that did not pass, worst first, followed by the fleet's failed checks and the
    verdict.
    """
    table = Table(box=None, pad_edge=False, header_style="dim", title=None)
    for heading in ("", "node", "verdict", "cause", "what failed first"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("", "node", "verdict"))
    not_passed = [node for node in fleet.nodes if node.verdict != "PASS"]
    for node in not_passed[: acceptance.MOST]:
        cause = node.first.cause if node.first else None
        _accepted_row(table, node.verdict, node.node, cause, acceptance.first(node))
    for cell in fleet.checks:
        if cell.verdict != "PASS":
            _accepted_row(table, cell.verdict, "all nodes", cell.cause, f"{cell.id}: {cell.text}")
    if len(not_passed) > acceptance.MOST:
        table.add_row("", f"{len(not_passed) - acceptance.MOST} more", "", "", "see the report for all nodes")
    _accepted_row(table, fleet.verdict, "acceptance", None, fleet.text)
    return table


def _accepted_row(table: Table, verdict: str, node: str, cause: str | None, text: str) -> None:
    style = STYLE[verdict]
    mark = Text(acceptance.MARKS[verdict], style=style)
    table.add_row(mark, Text(node), Text(verdict, style=style), Text(cause or ""), Text(text))


def render_short(verdict: Verdict, bundle: Path) -> None:
    """Print a verdict in three lines, for the captured output of a test."""
    ranks = f" ranks {ranges(verdict.ranks)}" if verdict.ranks else ""
    print(f"{MARK[verdict.verdict]} {verdict.verdict} {verdict.cause or ''}{ranks}")
    print(printable(f"  {verdict.explanation}\n  bundle {bundle}"))
