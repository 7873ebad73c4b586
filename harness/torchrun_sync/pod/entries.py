"""Validate the entries of a tree, and compute the tree's digest.

Both the client and the pods use this module.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

Entry = dict[str, Any]
"""An entry of a tree: a dict with path and kind (file, dir or link). A file or folder also has a mode, a file
also has size and sha256, and a link also has a target.
"""
KINDS = {"file": ("mode", "size", "sha256"), "dir": ("mode",), "link": ("target",)}


class Refused(Exception):
    """Raised if a pod cannot fulfil a request. The receiver sends the message to the client."""


class Dropped(Refused):
    """Raised if received file content had the wrong digest and was deleted. The sender can send the content
    again."""


def tree_digest(entries: Sequence[Entry]) -> str:
    """Return the digest of a tree, given its entries in any order."""
    rows = sorted([e["path"], e["kind"], *(e[name] for name in KINDS[e["kind"]])] for e in entries)
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()


def check(entries: Sequence[Entry]) -> None:
    """Raise Refused if the entries do not form a valid tree, or if an entry leads out of the tree."""
    kinds: dict[str, str] = {}
    for entry in entries:
        path, kind = entry["path"], entry["kind"]
        if kind not in KINDS:
            raise Refused(f"{path!r} has the kind {kind!r}; expected one of {', '.join(KINDS)}")
        if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
            raise Refused(f"the path {path!r} leaves the tree")
        if path in kinds:
            raise Refused(f"the path {path!r} occurs twice")
        kinds[path] = kind
        if kind == "link" and leaves(path, entry["target"]):
            raise Refused(f"the link {path!r} leaves the tree: {entry['target']!r}")
        if kind == "file" and not (is_sha256(entry["sha256"]) and entry["size"] >= 0):
            raise Refused(
                f"the file {path!r} has no valid digest and size: {entry['sha256']!r}, {entry['size']!r}"
            )
    for path in kinds:
        parent = path.rpartition("/")[0]
        if parent and kinds.get(parent) != "dir":
            raise Refused(f"{path!r} lies in {parent!r}, which is not a folder of the tree")


def leaves(path: str, target: str) -> bool:
    """Return whether a link at `path` leads out of the tree. A link with an absolute or empty target always
    does."""
    if not target or target.startswith("/") or "\0" in target:
        return True
    depth = path.count("/")
    for part in target.split("/"):
        depth += -1 if part == ".." else 0 if part in ("", ".") else 1
        if depth < 0:
            return True
    return False


def is_sha256(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and not set(text) - set("0123456789abcdef")
