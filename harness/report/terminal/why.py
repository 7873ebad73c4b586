"""Print the cause of a verdict and the evidence for it on one screen."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from harness.core.input_limits import bounded_int
from harness.evidence.io.files import bounded_lines, open_inside
from harness.evidence.schema.bundle import Verdict
from harness.report.amounts import ranges
from harness.report.terminal.console import MARK, STYLE

MAX_EVIDENCE = 4
MAX_OTHERS = 4
_WIDTH = 240
"""Maximum length of a quoted log line in characters."""


def render(verdict: Verdict, bundle: Path, console: Console) -> None:
    """Print the verdict, its cause, the evidence with quoted log lines, and what to do next."""
    head = Text(f"{MARK[verdict.verdict]} {verdict.verdict}", style=STYLE[verdict.verdict])
    if verdict.cause:
        ranks = (
            f"  rank{'s' if len(verdict.ranks) > 1 else ''} {ranges(verdict.ranks)}" if verdict.ranks else ""
        )
        head.append(f"  {verdict.cause}{ranks}", style="bold")
    console.print(head)
    console.print(Text(verdict.explanation))
    for ref in verdict.evidence[:MAX_EVIDENCE]:
        console.print(Text(f"  {ref}  {_quoted(bundle, ref)}".rstrip(), style="dim"), soft_wrap=True)
    for line in verdict.consequences[:MAX_OTHERS]:
        console.print(Text(f"then  {line}"))
    passed = [check.name for check in verdict.checks if check.result == "PASS"]
    open_ = [
        check.name for check in verdict.checks if check.result == "UNKNOWN" and check.cause != verdict.cause
    ]
    console.print(Text(f"passed: {', '.join(passed) or 'none'}", style="dim"))
    if open_:
        console.print(Text(f"not known: {', '.join(open_)}", style="dim"))
    for line in verdict.next:
        label, text = ("advice", line[2:]) if line.startswith("# ") else ("next", line)
        console.print(Text(f"{label:7} {text}"), soft_wrap=True)


def _quoted(bundle: Path, ref: str) -> str:
    """Return the log line that a reference points to, without its timestamp, or "" if there is none."""
    file, _, number = ref.partition(":")
    if not file.startswith("logs/") or not number.isdecimal():
        return ""
    line_number = bounded_int(number)
    try:
        with open_inside(bundle, file) as lines:
            for at, line in enumerate(bounded_lines(lines, 1 << 16), 1):
                if at == line_number:
                    return line.decode(errors="replace").rstrip().partition(" ")[2][:_WIDTH]
    except OSError:
        return ""
    return ""
