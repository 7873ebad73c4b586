"""A hook of MkDocs: pages that are written for GitHub become pages of the site.

Links that leave docs/ lead to the repository. On GitHub, a list needs no blank line before it and is nested
by two spaces; for MkDocs it needs a blank line and four.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from typing import Any

REPOSITORY = os.environ.get("GITHUB_REPOSITORY", "")
SERVER = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
LINK = re.compile(r"\[(?P<text>[^\[\]]+)\]\((?P<target>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")
ITEM = re.compile(r"(?:[-*]|\d+\.) ")
FENCE = re.compile(r" *```")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the Markdown of a page as MkDocs reads it."""
    return "\n".join(_lists(_links(markdown, posixpath.dirname(page.file.src_uri)).split("\n")))


def _links(markdown: str, folder: str) -> str:
    """Return the text with links to folders and to files outside docs/ as addresses of the repository.

    Outside GitHub Actions, where the repository is not known, only the text of such a link is kept.
    """

    def outside(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, link["target"]))
        if path.startswith("docs/") and not link["target"].endswith("/"):
            return link[0]
        address = f"{SERVER}/{REPOSITORY}/blob/main/{path}{link['anchor'] or ''}"
        return f"[{link['text']}]({address})" if REPOSITORY else link["text"]

    return LINK.sub(outside, markdown)


def _lists(lines: list[str]) -> Iterator[str]:
    """Yield the lines with a blank line before each list and four spaces for each level."""
    listed, before = False, ""
    fence: int | None = None  # by how much the lines of an open code fence move to the right
    for line in lines:
        indent = len(line) - len(line.lstrip(" "))
        if fence is None and line and not indent:
            item = ITEM.match(line) is not None
            if item and not listed and before:
                yield ""
            listed = item or (listed and bool(before))
        shift = (4 if indent == 3 else 2 * indent) - indent if fence is None else fence
        yield " " * shift + line if listed and indent else line
        if FENCE.match(line):
            fence = shift if fence is None else None
        before = line
