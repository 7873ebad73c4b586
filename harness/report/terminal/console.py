"""Define symbols and styles for verdicts in a terminal, and a console for tables."""

from __future__ import annotations

from collections.abc import Iterable

from rich import console as rich_console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from harness.core.terminal_text import printable

STYLE = {"PASS": "bold green", "WARN": "bold yellow", "FAIL": "bold red", "UNKNOWN": "bold yellow"}
MARK = {"PASS": "✓", "FAIL": "✗", "UNKNOWN": "?"}
PIPE_COLUMNS = 240


class Console(rich_console.Console):
    """A rich console that makes control characters in text visible.

    rich itself prints them unchanged.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def wide() -> Console:
    """Return a console for tables. If stdout is not a terminal, the console is PIPE_COLUMNS wide."""
    console = Console()
    if not console.is_terminal:
        console.width = PIPE_COLUMNS
    return console
