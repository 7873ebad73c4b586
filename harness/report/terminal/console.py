"""How verdicts look in a terminal, for listings that need nothing of a single bundle."""

from __future__ import annotations

from rich.console import Console

STYLE = {"PASS": "bold green", "WARN": "bold yellow", "FAIL": "bold red", "UNKNOWN": "bold yellow"}
MARK = {"PASS": "✓", "FAIL": "✗", "UNKNOWN": "?"}
PIPE_COLUMNS = 240


def wide() -> Console:
    """Return a console for tables. Output that is not a terminal gets unlimited width."""
    console = Console()
    if not console.is_terminal:
        console.width = PIPE_COLUMNS
    return console
