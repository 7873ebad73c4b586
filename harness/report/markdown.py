"""Format GitHub Markdown: tables with escaped cells, and plain text that is not parsed as markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table, followed by an empty line, or [] if there are no rows.

    Each cell is one line of Markdown.
    """
    lines = [_line(row) for row in rows]
    return [_line(head), _line(["---"] * len(head)), *lines, ""] if lines else []


def code(verbatim: str) -> str:
    """Return the text as a Markdown code span, or "" for an empty string."""
    if "`" not in verbatim:
        return f"`{verbatim}`" if verbatim else ""
    fence = "`" * (1 + max(map(len, re.findall("`+", verbatim))))
    return f"{fence} {verbatim} {fence}"


def text(plain: str) -> str:
    """Format plain text as one line of Markdown, with markup escaped and line breaks converted to <br>."""
    escaped = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    escaped = re.sub(r"([\\`*_{}\[\]#~|@])", lambda match: f"&#{ord(match[1])};", escaped)
    return re.sub(r"\s*[\r\n]\s*", "<br>", escaped.strip())


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(markdown: str) -> str:
    """Format a table cell with escaped pipes. Backslashes before pipes are doubled, as parsers differ."""
    return re.sub(r"(\\*)\|", r"\1\1\\|", " ".join(markdown.split()))
