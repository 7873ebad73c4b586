"""What ignore files mean where git does not read them itself."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.errors import UsageError
from harness.torchrun_sync.tree import Walker

Git = Callable[..., str]


def scan(top: Path) -> set[str]:
    """Return the paths of the files that are sent."""
    return {entry["path"] for entry in Walker(top).scan().entries if entry["kind"] != "dir"}


ODD_RULES = {
    "no pattern": (b"!\n! \n\\\nfoo\\\n[z-a]\n*.log\n", ["a.log", "foo", "foo\\", "!", "a"]),
    "a class": (b"run[[:digit:]]\n[![:alpha:]].txt\n", ["run1", "runs", "1.txt", "a.txt", "run:"]),
    "a bracket in a set": (b"[[]x\n[a[b]y\n", ["[x", "ay", "[y", "cy"]),
    "Icon of macOS": (b"Icon\r\r\n*.tmp\r\n", ["Icon\r", "Icon", "x.tmp"]),
    "Icon of macOS, new form": (b"Icon[\r]\n", ["Icon\r", "Icon"]),
    "white space": (
        b" lead\ntab\t\nspace   \nkept\\ \n",
        [" lead", "lead", "tab", "tab\t", "space", "kept "],
    ),
    "other line ends": ("a\x0bb\nc\u2028d\n\x0c\n".encode(), ["a", "b", "a\x0bb", "c", "d", "c\u2028d"]),
    "Latin-1": ("# \xfcber\nm\xfcll\n*.log\n".encode("latin-1"), [os.fsdecode(b"m\xfcll"), "a.log", "b"]),
    "UTF-8 with a mark": (b"\xef\xbb\xbf*.log\n", ["a.log", "b"]),
}
"""Ignore files that git reads without a message, and names that their rules might match."""


@pytest.mark.parametrize("case", ODD_RULES)
def test_rules_that_only_git_understands(tmp_path: Path, git: Git, case: str) -> None:
    """cpburnz/python-pathspec#146 and #44, Aider-AI/aider#4025: one line that git ignores stopped a program.
    github/gitignore#804 and #2297: the rule for the file Icon\\r left out each folder Icon.

    Contract: outside of a work tree, as in a copy without .git, the same files are sent as in it.
    """
    rules, names = ODD_RULES[case]
    for top in (tmp_path / "git", tmp_path / "copy"):
        top.mkdir()
        (top / ".gitignore").write_bytes(rules)
        for name in names:
            (top / name).write_text("")
    git(tmp_path / "git", "init", "-q")
    assert scan(tmp_path / "copy") == scan(tmp_path / "git")


def test_own_rule_that_is_not_valid_is_refused(tmp_path: Path) -> None:
    """Contract: the user wrote .torchrunignore for this command, and learns which line means nothing."""
    for rule in ("!", "[z-a]"):
        (tmp_path / ".torchrunignore").write_text(f"*.log\n{rule}\n")
        with pytest.raises(UsageError, match=r"\.torchrunignore cannot be used: '" + re.escape(rule)):
            scan(tmp_path)
