"""Marks and styles for verdicts in a terminal, and a console for tables."""

from __future__ import annotations

from rich.console import Console

STYLE = {"PASS": "bold green", "WARN": "bold yellow", "FAIL": "bold red", "UNKNOWN": "bold yellow"}
MARK = {"PASS": "✓", "FAIL": "✗", "UNKNOWN": "?"}
PIPE_COLUMNS = 240


def wide() -> Console:
    """Return a console for tables. If stdout is not a terminal, the console is PIPE_COLUMNS wide."""
    console = Console()
    if not console.is_terminal:
        console.width = PIPE_COLUMNS
    return console
