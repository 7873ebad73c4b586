"""List the tracked files in a git work tree, and the untracked files that git does not ignore.

In git, ignore rules do not affect tracked files. Git reads rules not only from .gitignore files in the
folder, but also from the folders above it, .git/info/exclude, and the user's global file. Therefore this
module runs git to list the files.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.errors import UsageError
from harness.core.processes import environment

SECONDS = 120.0
"""The timeout of a git command in seconds. The timeout is long, because network file systems are slow."""
LOCK_SECONDS = 30.0
"""The maximum age of a lock on git's index, in seconds, that shows that git is changing files."""
GITLINK = "160000"
"""The file mode of a submodule in git's index."""
EXECUTABLE, LINK = "100755", "120000"
"""The file modes of an executable file and a symbolic link in git's index."""
IGNORED = "git ignores it"
_REFUSAL = re.compile(r"^(?:fatal|error): (.*)$", re.M)
_TRUST = re.compile(r"git config --global --add safe\.directory .*")
_INHERITED = ("GIT_CONFIG", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM", "GIT_EXEC_PATH")
"""The prefixes of environment variables that are passed to git. Other variables, such as GIT_DIR in a git
hook, might make git use another repository.
"""


class NoWorkTree(Exception):
    """Raised if git does not treat the folder as part of a work tree. The message contains git's reason."""


@dataclass(frozen=True)
class GitFiles:
    """The files that git lists in one folder of a work tree. Paths are relative to the folder."""

    tracked: frozenset[str]
    untracked: frozenset[str]
    """Files that are neither tracked nor ignored."""
    submodules: frozenset[str]
    repositories: frozenset[str]
    """Folders inside the work tree that contain another repository and are not submodules."""
    ignored_folders: frozenset[str]
    unmerged: frozenset[str] = frozenset()
    """Tracked files with a merge conflict that was not marked as resolved in git."""
    links: frozenset[str] = frozenset()
    """Tracked symbolic links."""
    executable: dict[str, bool] = field(default_factory=dict, kw_only=True)
    """Maps tracked files to whether they are executable. The mapping is empty unless git ignores the
    permission bits on the disk (core.fileMode is false). For files that are not in the mapping, the
    permission bits on the disk apply."""
    ignores_case: bool = field(default=False, kw_only=True)
    """Whether git regards names that differ only in case as the same name (core.ignoreCase), because the
    disk does, as on macOS and Windows. The disk may then show another case than git's index."""
    composes: bool = field(default=False, kw_only=True)
    """Whether git prints names in composed Unicode (core.precomposeUnicode), although macOS may store and
    list them in decomposed Unicode."""
    _names: dict[str, list[str]] = field(init=False)
    """The names of all tracked files and their folders, keyed by `_key`."""
    _untracked: frozenset[str] = field(init=False)
    _ignored_folders: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        names: dict[str, list[str]] = defaultdict(list)
        for path in (*self.tracked, *self.submodules):
            names[self._key(path)].append(path)
        for path in _parents({*self.tracked, *self.submodules}):
            names[f"{self._key(path)}/"].append(path)
        for path in self.submodules:
            names[f"{self._key(path)}/"].append(path)
        object.__setattr__(self, "_names", dict(names))
        object.__setattr__(self, "_untracked", frozenset(map(self._key, self.untracked)))
        object.__setattr__(self, "_ignored_folders", frozenset(map(self._key, self.ignored_folders)))

    def _key(self, path: str) -> str:
        path = unicodedata.normalize("NFC", path) if self.composes else path
        return path.casefold() if self.ignores_case else path

    def is_tracked(self, path: str) -> bool:
        """Return whether git tracks a file or, if the path ends with a slash, any file in the folder."""
        return self._key(path) in self._names

    def is_ignored(self, path: str) -> bool:
        """Return whether git ignores an untracked path. Folder paths end with a slash."""
        if path.endswith("/"):
            return self._key(path[:-1]) in self._ignored_folders
        return self._key(path) not in self._untracked

    def name_in_git(self, path: str) -> str:
        """Return the last component of a path as git spells it, if the disk spells it with another case.
        Otherwise, return "". Folder paths end with a slash."""
        name = path.rstrip("/").rpartition("/")[2]
        names = {each.rpartition("/")[2] for each in self._names.get(self._key(path), [])}
        return min(names) if self.ignores_case and names and name not in names else ""

    def colliding(self) -> list[list[str]]:
        """Return the groups of tracked files whose names git regards as the same name."""
        groups = ({*paths} for key, paths in self._names.items() if not key.endswith("/"))
        return sorted(sorted(group) for group in groups if len(group) > 1)


def git_files(folder: Path) -> GitFiles:
    """List the files in a folder with git.

    Raises NoWorkTree if the folder is not in a work tree, and UsageError if git cannot list the files.
    """
    indexed = _git(folder, "ls-files", "-z", "-t", "--stage", "--cached", "--others", "--exclude-standard")
    tracked: set[str] = set()
    untracked: set[str] = set()
    submodules: set[str] = set()
    repositories: set[str] = set()
    unmerged: set[str] = set()
    modes: dict[str, str] = {}
    for record in indexed:
        tag, rest = record[0], record[2:]
        if tag == "?":
            (repositories if rest.endswith("/") else untracked).add(rest.rstrip("/"))
            continue
        entry, _, path = rest.partition("\t")
        (submodules if entry.startswith(GITLINK) else tracked).add(path)
        modes[path] = entry.partition(" ")[0]
        if tag == "M":
            unmerged.add(path)
    known_paths = tracked or untracked or submodules or repositories
    if not known_paths and not os.path.lexists(folder / ".git") and _is_ignored(folder):
        raise NoWorkTree(f"git ignores the folder {folder} itself")
    # If git listed no files, the folder may be inside an ignored folder. In such a folder, the next command
    # would fail.
    only_ignored = ("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
    ignored = _git(folder, *only_ignored) if known_paths else []
    # Git also lists a folder that is not itself ignored if all files in it are ignored. In this case, git
    # lists these files too.
    parents = _parents(ignored)
    ignored_folders = {path[:-1] for path in ignored if path.endswith("/") and path[:-1] not in parents}
    links = {path for path, mode in modes.items() if mode == LINK}
    files = (tracked, untracked, submodules, repositories, ignored_folders, unmerged, links)
    disk = _disk_settings(folder)
    # Git does not trust the permission bits on Windows file systems and some network file systems, where
    # either all files or no files may appear to be executable.
    executable = {} if disk.get("core.filemode", True) else _executable(folder, modes)
    return GitFiles(
        *map(frozenset, files),
        executable=executable,
        ignores_case=disk.get("core.ignorecase", False),
        composes=disk.get("core.precomposeunicode", False),
    )


def _executable(folder: Path, modes: dict[str, str]) -> dict[str, bool]:
    """Return whether tracked files are executable, keyed by path, for a disk whose permission bits git
    ignores.

    A file that git stores as executable is executable. If the disk shows all tracked files as executable, as
    Windows disks do, the other files are not executable. Otherwise, the other files are left out, and their
    permission bits on the disk apply.
    """
    tracked = {path for path, mode in modes.items() if mode not in (LINK, GITLINK)}
    existing = [folder / path for path in tracked if (folder / path).is_file()]
    is_shown_for_all = all(path.stat().st_mode & 0o111 for path in existing)
    return {
        path: modes[path] == EXECUTABLE for path in tracked if modes[path] == EXECUTABLE or is_shown_for_all
    }


def _disk_settings(folder: Path) -> dict[str, bool]:
    """Return git's settings for properties of the disk, keyed by name in lower case."""
    names = r"^core\.(filemode|ignorecase|precomposeunicode)$"
    lines = _run(folder, "config", "--type=bool", "--get-regexp", names).stdout.decode().splitlines()
    return {name: value == "true" for name, _, value in (line.partition(" ") for line in lines)}


def linked_work_tree_of(folder: Path) -> Path | None:
    """Return the repository of a linked work tree (`git worktree add`), or None if the folder is not a linked
    work tree."""
    try:
        text = (folder / ".git").read_text(errors="replace")
    except OSError:
        return None
    # The path of a submodule's repository has no `worktrees` before its last component.
    repository = Path(text.removeprefix("gitdir:").strip())
    return repository.parent.parent if repository.parent.name == "worktrees" else None


def is_changing(folder: Path) -> bool:
    """Return whether git is changing the files or the index of the folder's work tree, e.g. in a checkout, a
    rebase or a stash.

    git locks the index for this time. A lock is ignored after LOCK_SECONDS, because it may be left from a
    process that was killed, or belong to a commit whose message is being edited.
    """
    if (repository := is_in_repository(folder)) is None:
        return False
    try:
        if repository.is_file():  # In a submodule and in a linked work tree, the file contains the path.
            path = repository.read_text(errors="replace").removeprefix("gitdir:").strip()
            repository = repository.parent / path
        return time.time() - (repository / "index.lock").lstat().st_mtime < LOCK_SECONDS
    except OSError:
        return False


def is_in_repository(folder: Path) -> Path | None:
    """Return the path of the nearest `.git` in a folder or in the folders above it, or None.

    The repository may be invalid.
    """
    top = folder.resolve()
    return next((each / ".git" for each in (top, *top.parents) if os.path.lexists(each / ".git")), None)


def _is_ignored(folder: Path) -> bool:
    return _run(folder, "check-ignore", "--quiet", ".").returncode == 0


def _git(folder: Path, *arguments: str) -> list[str]:
    """Return the NUL-terminated records that a git command prints.

    Git terminates the records with NUL, because file names can contain any other byte.
    """
    result = _run(folder, *arguments)
    if result.returncode == 0:
        return [os.fsdecode(each) for each in result.stdout.split(b"\0") if each]
    text = result.stderr.decode(errors="replace")
    refusals = _REFUSAL.findall(text)
    reason = "; ".join(refusals) or text.strip() or f"exit code {result.returncode}"
    if "not a git repository" in text or "must be run in a work tree" in text:
        raise NoWorkTree(reason)
    trust = _TRUST.search(text)
    raise UsageError(
        f"{folder} is in a git work tree, but git cannot list its files: {reason}",
        hint=trust[0] if trust else f"make `git -C {folder} status` work, or sync a copy without .git",
    )


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    # fsmonitor would run a program that the repository's configuration names. It is not needed to list files.
    command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", *arguments]
    removed = {
        name: None for name in os.environ if name.startswith("GIT_") and not name.startswith(_INHERITED)
    }
    changes = {**removed, "LC_ALL": "C", "LANGUAGE": None, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        return subprocess.run(
            command,
            env=environment(changes),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise UsageError(
            f"{folder} is in a git work tree, but there is no `git` command to list the files to send",
            hint="install git, or sync a copy of the folder without .git",
        ) from None
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"git did not list the files of {folder} within {SECONDS:g} s",
            hint=f"find out why `git -C {folder} ls-files --others --exclude-standard` does not finish",
        ) from None


def _parents(paths: Iterable[str]) -> set[str]:
    """Return all folders that contain at least one of the paths."""
    folders: set[str] = set()
    for path in paths:
        folder = path.rstrip("/").rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return folders
