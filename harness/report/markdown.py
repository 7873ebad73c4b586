"""Write GitHub's Markdown: tables whose cells stay cells, and text that is not read as markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table's lines and an empty one. Without rows it returns none. Each cell is Markdown on one
    line.
    """
    lines = [_line(row) for row in rows]
    return [_line(head), _line(["---"] * len(head)), *lines, ""] if lines else []


def code(verbatim: str) -> str:
    """Return a code span, or "" for ""."""
    if "`" not in verbatim:
        return f"`{verbatim}`" if verbatim else ""
    fence = "`" * (1 + max(map(len, re.findall("`+", verbatim))))
    return f"{fence} {verbatim} {fence}"


def text(plain: str) -> str:
    """Plain text on one line: nothing in it is markup, and where it broke it still does."""
    safe = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    safe = re.sub(r"([\\`*_{}\[\]#~|@])", lambda found: f"&#{ord(found[1])};", safe)
    return re.sub(r"\s*[\r\n]\s*", "<br>", safe.strip())


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(markdown: str) -> str:
    """Backslashes before a pipe are doubled: of `\\\\|` parsers differ on whether the pipe ends the cell."""
    return re.sub(r"(\\*)\|", r"\1\1\\|", " ".join(markdown.split()))
