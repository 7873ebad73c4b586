"""Apply ignore rules without git: .torchrunignore, the .gitignore of each folder, and built-in rules.

The rules have the syntax of .gitignore, and the pathspec library matches paths against them. As in git, a
file in an ignored folder cannot be included again. Folder paths end with a slash.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from pathspec import GitIgnoreSpec, RegexPattern

from harness.core.errors import UsageError
from harness.core.user_files import read_bytes, read_text

OWN = ".torchrunignore"
GIT = ".gitignore"
NEVER_MEANT = (
    *(".git", ".torchrun/", "__pycache__/", "*.pyc", ".venv/", "venv/", ".tox/", ".mypy_cache/"),
    *(".pytest_cache/", ".ruff_cache/", ".ipynb_checkpoints/", ".DS_Store"),
    *(".hg/", ".svn/", ".bzr/", ".jj/", ".sl/"),
    *(
        "*~",
        ".#*",
        "\\#*#",
        ".*.sw[a-p]",
        ".*.kate-swp",
        "*___jb_tmp___",
        "*___jb_old___",
        ".goutputstream-*",
    ),
    *(".nfs[0-9a-f]*", ".fuse_hidden*"),
)
"""The built-in rules: git's own files, caches, virtual environments, the folders of other version control
systems, and files that editors and network file systems create for a short time, which would restart the
ranks with `--watch`. An ignore file can override these rules, e.g. with `!.git` in .torchrunignore."""
MAX_RULES = 2000
"""The maximum number of lines in an ignore file. The number is limited, because each path is compared with
every line."""
_HINT = "use the syntax of .gitignore"
_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "lower": "a-z",
    "space": " \t\n\v\f\r",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}
"""The character classes in ignore rules, and their characters."""
_BUILT_IN = GitIgnoreSpec.from_lines(NEVER_MEANT)


class OwnRules:
    """The rules in a folder's .torchrunignore file."""

    def __init__(self, top: Path) -> None:
        self._spec = _own_spec(top / OWN)
        patterns = [rule.pattern for rule in self._spec.patterns] if self._spec else []
        self.mistaken = [
            each for each in patterns if isinstance(each, str) and _is_mistaken(each.strip(), top)
        ]
        """The rules that match no path, because they are not relative to the folder or contain
        backslashes."""

        self._folders = _compiled(_folders_of(_included(self._spec)))

    def includes_below(self, folder: str) -> bool:
        """Return whether a rule includes a path inside a folder again, such as `!a/b.bin` for the folder `a`.

        The folder's path ends with a slash. A rule without a folder in it, such as `!*.bin`, does not count.
        """
        return bool(_ignored(self._folders, folder))

    def decision(self, path: str) -> bool | None:
        """Return True if the rules exclude a path, False if they include it again, and None if no rule
        matches."""
        return _ignored(self._spec, path)


class Ignored:
    """The .gitignore files in a folder and its subfolders.

    Call `enter` for each folder during a walk, outer folders first.
    """

    def __init__(self, top: Path) -> None:
        self._top = top
        self._by_folder: dict[str, GitIgnoreSpec] = {}

    def enter(self, folder: str) -> None:
        """Read the .gitignore of a folder, given by its path relative to the top folder.

        The path of the top folder itself is "".
        """
        if spec := _spec(self._top / folder / GIT):
            self._by_folder[folder] = spec

    def decision(self, path: str) -> bool | None:
        """Return whether the nearest .gitignore that has a matching rule ignores a path, or None if no rule
        matches."""
        parts = path.rstrip("/").split("/")[:-1]
        for depth in range(len(parts), -1, -1):
            folder = "/".join(parts[:depth])
            ignored = _ignored(self._by_folder.get(folder), path[len(folder) + 1 if folder else 0 :])
            if ignored is not None:
                return ignored
        return None


def _included(spec: GitIgnoreSpec | None) -> Iterator[str]:
    """Yield the rules that include paths again."""
    for rule in spec.patterns if spec else ():
        if isinstance(rule, RegexPattern) and isinstance(rule.pattern, str) and rule.include is False:
            yield rule.pattern


def _folders_of(rules: Iterable[str]) -> Iterator[str]:
    """Yield rules for the folders that contain the paths of these include rules."""
    for rule in rules:
        parts = rule.strip().removeprefix("!").strip("/").split("/")
        if parts[0] != "**":
            yield from (f"/{'/'.join(parts[:depth])}/" for depth in range(1, len(parts)))


def _is_mistaken(pattern: str, top: Path) -> bool:
    """Return whether a rule is written like a path in a shell or on Windows, and therefore matches nothing.

    A backslash is permitted as the first character of a rule, and before a space, a bracket, `#`, `!`, `?` or
    another backslash.
    """
    if pattern.startswith("#"):
        return False
    rule = pattern.removeprefix("!")
    is_path = rule.startswith(("./", "../", f"{top.resolve()}/")) or re.match(r"[A-Za-z]:[/\\]", rule)
    return bool(is_path or re.search(r"[^\\]\\(?![ #!\[\]?\\])", rule))


def is_never_meant(path: str) -> bool:
    """Return whether a built-in rule excludes a path, such as a cache, a virtual environment or git's own
    files."""
    return bool(_ignored(_BUILT_IN, path))


def _ignored(spec: GitIgnoreSpec | None, path: str) -> bool | None:
    """Return whether the last matching rule in an ignore file ignores the path, or None if no rule matches.

    pathspec also applies the rule `a/` to everything inside `a`, and the rule `a/**` to `a` itself. This
    function behaves like git instead: `a/` applies only to the folder, and `a/**` only to its content. This
    is sufficient, because a walk checks each path separately.
    """
    for rule in reversed(list(spec.patterns) if spec else []):
        result = rule.match_file(path) if isinstance(rule, RegexPattern) else None
        if result is not None and rule.include is not None:
            # The group `ps_d` matches the slash after a folder's name.
            folder = result.match.re.groupindex.get("ps_d")
            if folder is None:
                is_applicable = not (path.endswith("/") and result.match.end() == len(path))
            else:
                is_applicable = result.match.end(folder) in (-1, len(path))
            if is_applicable:
                return bool(rule.include)
    return None


def _own_spec(file: Path) -> GitIgnoreSpec | None:
    """Return the rules in a .torchrunignore file. Raises UsageError for a file or rule that is not valid."""
    if not file.exists() or file.is_dir():
        return None
    lines = _lines(file, read_text(file, "ignore file", hint=_HINT))
    for line in lines:
        try:
            _compiled([_rule(line)])
        except (ValueError, re.error) as error:
            raise UsageError(f"ignore file {file} cannot be used: {line!r}: {error}", hint=_HINT) from None
    return _compiled(map(_rule, lines))


def _spec(file: Path) -> GitIgnoreSpec | None:
    """Return the rules in a .gitignore file as git reads them.

    A rule that is not valid matches nothing, and the names in a rule may have any encoding.
    """
    if not file.exists() or file.is_dir():
        return None
    data = read_bytes(file, "ignore file", hint=_HINT).removeprefix(codecs.BOM_UTF8)
    rules: list[str] = []
    for line in _lines(file, os.fsdecode(data)):
        with contextlib.suppress(ValueError, re.error):
            _compiled([_rule(line)])
            rules.append(_rule(line))
    return _compiled(rules)


def _compiled(rules: Iterable[str]) -> GitIgnoreSpec:
    """Return the rules as regular expressions. Raises ValueError or re.error for a rule that is not valid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Python warns about a bracket in a character set.
        # The other backends do not support names that are not valid UTF-8.
        return GitIgnoreSpec.from_lines(rules, backend="simple")


def _lines(file: Path, text: str) -> list[str]:
    """Return the lines of an ignore file. As in git, a carriage return does not end a line."""
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    if len(lines) > MAX_RULES:
        raise UsageError(
            f"ignore file {file} has {len(lines)} lines; at most {MAX_RULES} are supported",
            hint="list folders instead of their files",
        )
    return lines


def _rule(line: str) -> str:
    """Return a line of an ignore file in a form that pathspec reads as git does.

    Git removes only spaces from the end of a line, but pathspec also removes other white space, which would
    turn GitHub's rule for the file `Icon\\r` into a rule for each folder `Icon`. Python's regular expressions
    have no classes such as [:digit:].
    """
    for name, characters in _CLASSES.items():
        line = line.replace(f"[:{name}:]", characters)
    line = re.sub(r"(?<!\\) +$", "", line)
    return f"{line[:-1]}[{line[-1]}]" if line[-1:] in tuple("\r\t\v\f") else line
