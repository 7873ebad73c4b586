"""A hook of MkDocs: pages that are written for GitHub become pages of the site.

Links that leave docs/ lead to the repository. On GitHub, a list needs no blank line before it, and what
belongs to an item begins at the column of its text; for MkDocs, a list needs a blank line and four spaces for
each level. Code is not changed.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from typing import Any

REPOSITORY = os.environ.get("GITHUB_REPOSITORY", "")
SERVER = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
TEXT = r"(?:[^\[\]`]|`[^`]*`)+"
LINK = re.compile(
    r"(?P<code>(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`))"
    rf"|(?P<image>!?)\[(?P<text>{TEXT})\]"
    r"\((?P<target>[^)#\s:]+)(?P<anchor>#[^)\s]*)?(?P<title>\s+\"[^\"]*\")?\)",
    re.DOTALL,
)
"""A code span, or a link or image whose target is a path. A code span can contain what looks like a link."""
ITEM = re.compile(r" *(?:[-*+]|\d+\.) +")
FENCE = re.compile(r" *(?P<mark>`{3,}|~{3,})(?P<info>[^`]*)$")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the Markdown of a page as MkDocs reads it."""
    folder = posixpath.dirname(page.file.src_uri)
    blocks = _blocks(markdown.split("\n"))
    parts = (_links(text, folder) if prose else text for prose, text in blocks)
    return "\n".join(_lists("\n".join(parts).split("\n")))


def _blocks(lines: list[str]) -> Iterator[tuple[bool, str]]:
    """Yield the code fences and the text between them, each with whether it is text."""
    part: list[str] = []
    mark = ""
    for line in lines:
        closing, opening = _fence(line, mark)
        if opening and part:
            yield True, "\n".join(part)
            part = []
        part.append(line)
        mark = opening or mark
        if closing:
            yield False, "\n".join(part)
            part, mark = [], ""
    if part:
        yield not mark, "\n".join(part)


def _fence(line: str, mark: str) -> tuple[bool, str]:
    """Return whether the line closes the fence that `mark` has opened, and the mark of a fence that it opens.

    A fence is closed by at least as many of the same characters.
    """
    found = FENCE.match(line)
    if found is None:
        return False, ""
    if mark:
        return found["mark"].startswith(mark) and not found["info"].strip(), ""
    return False, found["mark"]


def _links(markdown: str, folder: str) -> str:
    """Return the text with links to folders and to files outside docs/ as addresses of the repository.

    Outside GitHub Actions, where the repository is not known, only the text of such a link is kept.
    """

    def outside(link: re.Match[str]) -> str:
        if link["code"]:
            return link[0]
        path = posixpath.normpath(posixpath.join("docs", folder, link["target"]))
        if path.startswith("docs/") and not link["target"].endswith("/"):
            return link[0]
        if not REPOSITORY:
            return link["text"]
        view = "raw" if link["image"] else "blob"
        address = f"{SERVER}/{REPOSITORY}/{view}/main/{path}{link['anchor'] or ''}"
        return f"{link['image']}[{link['text']}]({address}{link['title'] or ''})"

    return LINK.sub(outside, markdown)


def _lists(lines: list[str]) -> Iterator[str]:
    """Yield the lines with a blank line before each list and four spaces for each level."""
    columns: list[int] = []  # where the text of each open item begins, from the outer to the inner item
    before, mark, shift = "", "", 0
    for line in lines:
        indent = len(line) - len(line.lstrip(" "))
        closing, opening = _fence(line, mark)
        if not mark and line.strip():
            item = ITEM.match(line)
            if not indent and not item and not before.strip():
                columns = []
            if item and not indent and not columns and before.strip():
                yield ""
            # A line belongs to the items whose text begins at its indent or before. A line of a paragraph may
            # be indented less; it still belongs to the innermost item.
            if item or not before.strip() or indent:
                while columns and indent < columns[-1]:
                    columns.pop()
            shift = 4 * len(columns) - (indent if item else columns[-1]) if columns and indent else 0
            if item:
                columns.append(item.end())
        yield " " * (indent + shift) + line.lstrip(" ") if indent else line
        mark = "" if closing else mark or opening
        before = line
