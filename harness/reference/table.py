"""Tables of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

WRITTEN = "Written from the code by `make reference`; a test holds the two together."


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Its lines, with an empty one after it; none without rows."""
    lines = [_line(row) for row in rows]
    return [_line(head), _line(["---"] * len(head)), *lines, ""] if lines else []


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"
