"""What does not travel: .torchrunignore, then each folder's .gitignore, then what nobody means to send.

The syntax is git's (library pathspec). The rule of the nearest file wins, and .torchrunignore wins over all.
As with git, what lies in an ignored folder cannot be brought back.
"""

from __future__ import annotations

from pathlib import Path

from pathspec import GitIgnoreSpec, RegexPattern

from harness.core.errors import UsageError
from harness.core.user_files import read_text

OWN = ".torchrunignore"
GIT = ".gitignore"
NEVER_MEANT = (
    *(".git/", ".torchrun/", "__pycache__/", "*.pyc", ".venv/", "venv/", ".tox/", ".mypy_cache/"),
    *(".pytest_cache/", ".ruff_cache/", ".ipynb_checkpoints/", ".DS_Store"),
)
"""Ignored unless a file says otherwise: `!.git/` in .torchrunignore brings it back."""
MAX_RULES = 2000
"""Lines of one file. Each path is compared with each of them."""
_HINT = "its syntax is that of .gitignore"


class Ignored:
    """The rules of a folder. `enter` is called for each folder that is walked, the outer one first."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self._own = _spec(top / OWN)
        self._by_folder: dict[str, GitIgnoreSpec] = {}
        self._rest = GitIgnoreSpec.from_lines(NEVER_MEANT)

    def enter(self, folder: str) -> None:
        """Read the .gitignore of a folder, named relative to the top ("" is the top itself)."""
        if spec := _spec(self._top / folder / GIT):
            self._by_folder[folder] = spec

    def __contains__(self, path: str) -> bool:
        """Whether this path is ignored. That of a folder ends with a slash."""
        if (said := _said(self._own, path)) is not None:
            return said
        parts = path.rstrip("/").split("/")[:-1]
        for depth in range(len(parts), -1, -1):
            folder = "/".join(parts[:depth])
            said = _said(self._by_folder.get(folder), path[len(folder) + 1 if folder else 0 :])
            if said is not None:
                return said
        return bool(_said(self._rest, path))


def _said(spec: GitIgnoreSpec | None, path: str) -> bool | None:
    """Return what the last rule of a file that matches says; None when none does.

    pathspec matches a rule for a folder against everything inside it, and `a/**` against the folder `a`.
    In git the first concerns the folder alone, the second only what is inside. Each path is asked for on its
    own.
    """
    for rule in reversed(list(spec.patterns) if spec else []):
        found = rule.match_file(path) if isinstance(rule, RegexPattern) else None
        if found is not None and rule.include is not None:
            folder = found.match.re.groupindex.get("ps_d")  # the slash after the folder that the rule names
            if folder is None:
                applies = not (path.endswith("/") and found.match.end() == len(path))
            else:
                applies = found.match.end(folder) in (-1, len(path))
            if applies:
                return bool(rule.include)
    return None


def _spec(file: Path) -> GitIgnoreSpec | None:
    if not file.exists() or file.is_dir():
        return None
    lines = read_text(file, "ignore file", hint=_HINT).splitlines()
    if len(lines) > MAX_RULES:
        raise UsageError(
            f"ignore file {file} has {len(lines)} lines; at most {MAX_RULES} are read",
            hint="name folders in place of their files",
        )
    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise UsageError(f"ignore file {file} cannot be used: {error}", hint=_HINT) from None
