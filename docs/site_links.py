"""A hook of MkDocs: links that leave docs/ lead to the repository."""

from __future__ import annotations

import os
import posixpath
import re
from typing import Any

REPOSITORY = os.environ.get("GITHUB_REPOSITORY", "")
SERVER = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
LINK = re.compile(r"\[(?P<text>[^\[\]]+)\]\((?P<target>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the page with links to folders and to files outside docs/ as addresses of the repository.

    Outside GitHub Actions, where the repository is not known, only the text of such a link is kept.
    """
    folder = posixpath.dirname(page.file.src_uri)

    def outside(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, link["target"]))
        if path.startswith("docs/") and not link["target"].endswith("/"):
            return link[0]
        address = f"{SERVER}/{REPOSITORY}/blob/main/{path}{link['anchor'] or ''}"
        return f"[{link['text']}]({address})" if REPOSITORY else link["text"]

    return LINK.sub(outside, markdown)
