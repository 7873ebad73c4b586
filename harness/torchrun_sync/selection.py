"""Select the files in a folder to send. The first of these rules that matches a path applies:

1. the folder's .torchrunignore; a folder that it includes again is sent with all its content, and a rule with
   a slash also includes a path again that lies in a folder which other rules exclude;
2. in a git work tree, git (git_files.py): tracked files are sent, ignored files are not;
   elsewhere, the .gitignore files (ignored.py);
3. built-in rules that exclude caches and virtual environments, except for files that git tracks. Virtual
   environments of Python and conda are detected by their content if they have other names.

Submodules and other repositories below the folder are work trees with their own rules.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.core.errors import UsageError
from harness.torchrun_sync.git_files import (
    IGNORED,
    GitFiles,
    NoWorkTree,
    git_files,
    is_in_repository,
    linked_work_tree_of,
)
from harness.torchrun_sync.ignored import GIT, OWN, Ignored, OwnRules, is_never_meant

BUILT_IN = "a built-in rule excludes it"
_KINDS = (stat.S_ISDIR, stat.S_ISREG, stat.S_ISLNK)


class _Rules(Protocol):
    """The rules for a part of the folder. The paths of folders end with a slash."""

    def enter(self, folder: str) -> None: ...
    def excluded(self, path: str) -> str:
        """Return the reason why a path is not sent, or "" if it is sent."""
        ...


@dataclass(frozen=True)
class _ByGit:
    files: GitFiles

    def enter(self, folder: str) -> None:
        pass

    def excluded(self, path: str) -> str:
        if self.files.is_tracked(path):
            return ""
        if path.rstrip("/") not in self.files.repositories and self.files.is_ignored(path):
            return IGNORED
        return BUILT_IN if is_never_meant(path) else ""


@dataclass(frozen=True)
class _ByFiles:
    ignored: Ignored

    def enter(self, folder: str) -> None:
        self.ignored.enter(folder)

    def excluded(self, path: str) -> str:
        decision = self.ignored.decision(path)
        if decision is None:
            return BUILT_IN if is_never_meant(path) else ""
        return f"a {GIT} file excludes it" if decision else ""


class _IncludeAll:
    """The rules for a folder that .torchrunignore includes again: all of its content is sent, except for
    caches and virtual environments."""

    def enter(self, folder: str) -> None:
        pass

    def excluded(self, path: str) -> str:
        return BUILT_IN if is_never_meant(path) else ""


@dataclass(frozen=True)
class _ExcludeAll:
    """The rules for an excluded folder. Only paths that .torchrunignore includes again are sent."""

    reason: str

    def enter(self, folder: str) -> None:
        pass

    def excluded(self, path: str) -> str:
        del path
        return self.reason


@dataclass
class Selection:
    """Selects files during a single walk through a folder. The lists are complete when the walk has ended."""

    top: Path
    excluded: list[tuple[str, str]] = field(default_factory=list)
    """A (path, reason) pair for each path that is not sent. Folder paths end with a slash."""
    skipped: list[str] = field(default_factory=list)
    """The paths of sockets, pipes and devices, which have no content to send."""
    executable: dict[str, bool] = field(default_factory=dict)
    """Maps files to whether they are executable. The mapping contains only files whose permission bits on the
    disk are unreliable."""
    notices: list[str] = field(default_factory=list)
    """A sentence for each effect of the rules that users might not expect."""

    def walk(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield (path, status) of each selected file, folder and link.

        Raises UsageError if a file cannot be read.
        """
        self._own_rules = OwnRules(self.top)
        if mistaken := self._own_rules.mistaken:
            self.notices.append(
                f"{OWN} has rules that match nothing: {', '.join(map(escaped_path, mistaken))}; a rule is "
                "relative to the folder, without ./, and uses forward slashes"
            )
        yield from self._folder("", self._rules(""), "")

    def _folder(self, folder: str, rules: _Rules, base: str) -> Iterator[tuple[str, os.stat_result]]:
        """Walk through one folder, to which `rules` apply.

        The paths in the rules are relative to the folder `base`.
        """
        rules.enter(_below(folder, base))
        try:
            entries = sorted(os.scandir(self.top / folder), key=lambda each: each.name)
        except FileNotFoundError:  # The folder was removed during the scan.
            return
        except OSError as error:
            raise unreadable(self.top / folder, error) from None
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise unreadable(self.top / path, error) from None
            is_folder = stat.S_ISDIR(status.st_mode)
            rule_path = f"{path}/" if is_folder else path
            own = self._own_rules.decision(rule_path)
            reason = (
                rules.excluded(_below(rule_path, base))
                if own is None
                else f"{OWN} excludes it"
                if own
                else ""
            )
            if is_folder and own is None and not reason and _is_environment(self.top / path):
                is_tracked = isinstance(rules, _ByGit) and rules.files.is_tracked(_below(rule_path, base))
                reason = "" if is_tracked else BUILT_IN
            if not any(is_kind(status.st_mode) for is_kind in _KINDS):
                # Git does not list sockets, pipes or devices, so git seems to ignore these files.
                if reason in ("", IGNORED):
                    self.skipped.append(path)
            elif reason and is_folder and self._own_rules.includes_below(rule_path):
                yield from self._excluded_folder(path, status, reason, own is True)
            elif reason:
                self.excluded.append((rule_path, reason))
            else:
                self._notice_case(rules, path, _below(rule_path, base))
                yield path, status
                if is_folder:
                    yield from self._folder(path, *self._inner(path, rules, base, own is False))

    def _excluded_folder(
        self, path: str, status: os.stat_result, reason: str, is_own: bool
    ) -> Iterator[tuple[str, os.stat_result]]:
        """Walk through an excluded folder that contains paths which .torchrunignore includes again.

        If .torchrunignore itself excludes the folder, git's rule applies: nothing in it is included again.
        """
        if is_own:
            shown = escaped_path(path)
            self.notices.append(
                f"{OWN} excludes {shown}/ with everything in it; to include a path in it again, write the "
                f"rules !{shown}/ and {shown}/* before the path's rule"
            )
            self.excluded.append((f"{path}/", reason))
            return
        before = len(self.excluded)
        inner = [*self._folder(path, _ExcludeAll(reason), "")]
        if all(stat.S_ISDIR(each.st_mode) for _, each in inner):
            self.excluded[before:] = [(f"{path}/", reason)]
            return
        yield path, status
        yield from inner

    def _inner(self, path: str, rules: _Rules, base: str, included: bool) -> tuple[_Rules, str]:
        """Return the rules for the content of a folder, and the folder to which the paths in these rules are
        relative."""
        if os.path.lexists(self.top / path / ".git"):
            if (repository := linked_work_tree_of(self.top / path)) is not None:
                self.notices.append(
                    f"{escaped_path(path)} is a work tree of {repository.parent} and is sent too; to keep it "
                    f"here, add {escaped_path(path)}/ to {OWN}"
                )
            return self._rules(path), path
        if isinstance(rules, _ByGit) and _below(path, base) in rules.files.submodules:
            if not any(os.scandir(self.top / path)):
                self.notices.append(
                    f"the submodule {path} is empty here and is sent empty; run `git submodule update --init`"
                )
            return _ByFiles(Ignored(self.top / path)), path
        return (_IncludeAll(), base) if included else (rules, base)

    def _notice_case(self, rules: _Rules, path: str, rule_path: str) -> None:
        """Add a notice if git stores a path with another case than the disk, which neither of them regards
        as a difference."""
        if isinstance(rules, _ByGit) and (name := rules.files.name_in_git(rule_path)):
            self.notices.append(
                f"{escaped_path(path)} is sent under this name, but its name in git is {escaped_path(name)}; "
                "names in a pod are case-sensitive"
            )

    def _rules(self, path: str) -> _Rules:
        """Return the rules for a folder. In a work tree, these are git's rules. Elsewhere, they are the rules
        in .gitignore files."""
        folder = self.top / path
        repository = is_in_repository(folder)
        if repository is not None:
            try:
                files = git_files(folder)
            except UsageError as error:
                hint = f"{error.hint}; or add {path}/ to {OWN}" if path else error.hint
                raise UsageError(error.message, hint=hint) from None
            except NoWorkTree as no:
                self.notices.append(
                    f"{repository} does not decide which files are sent ({no}); the {GIT} "
                    "files decide instead"
                )
            else:
                self._notice_differences(path, files)
                below = f"{path}/" if path else ""
                self.executable |= {f"{below}{each}": is_set for each, is_set in files.executable.items()}
                return _ByGit(files)
        return _ByFiles(Ignored(folder))

    def _notice_differences(self, path: str, files: GitFiles) -> None:
        """Add notices about files on disk that differ from their state in git."""
        folder = self.top / path

        def shown(each: str) -> str:
            return escaped_path(f"{path}/{each}".lstrip("/"))

        self.notices += [
            f"{shown(each)} is sent with merge conflict markers"
            for each in sorted(files.unmerged)
            if _has_markers(folder / each)
        ]
        self.notices += [
            f"the submodule {shown(each)} does not exist here and is not sent; run `git submodule update "
            "--init`"
            for each in sorted(files.submodules)
            if not os.path.lexists(folder / each)
        ]
        self.notices += [
            f"{shown(each)} is a symbolic link in git, but a file here, and is sent as a file; check it out "
            "again with core.symlinks=true"
            for each in sorted(files.links)
            if (folder / each).is_file() and not (folder / each).is_symlink()
        ]
        for group in files.colliding():
            missing = [each for each in group if not _is_listed(folder, each)]
            if missing:
                self.notices.append(
                    f"git has {' and '.join(map(shown, group))}, which this disk does not distinguish; "
                    f"{', '.join(map(shown, missing))} does not exist here and is not sent"
                )


def _is_environment(folder: Path) -> bool:
    """Return whether a folder is a virtual environment of Python or conda.

    A virtual environment is of no use in a pod, because its programs contain absolute paths. In addition, its
    links to this machine's Python would be refused.
    """
    return (folder / "pyvenv.cfg").is_file() or (folder / "conda-meta").is_dir()


def _is_listed(folder: Path, path: str) -> bool:
    """Return whether a path exists with exactly this case, also on a disk that ignores the case."""
    for part in path.split("/"):
        try:
            if part not in os.listdir(folder):
                return False
        except OSError:
            return False
        folder /= part
    return True


def _has_markers(file: Path) -> bool:
    try:
        with file.open("rb") as lines:
            return any(line.startswith((b"<<<<<<< ", b">>>>>>> ")) for line in lines)
    except OSError:
        return False


def escaped_path(path: str) -> str:
    """Return a path in a form that is safe to print.

    File names can contain line breaks, escape sequences and invalid UTF-8.
    """
    return path if path.isprintable() else ascii(path)


def _below(path: str, base: str) -> str:
    return path[len(base) + 1 :] if base and path != base else "" if path == base else path


def unreadable(path: Path, error: OSError) -> UsageError:
    """Return the error for a file or folder that cannot be read."""
    return UsageError(f"{path} cannot be read: {error.strerror}", hint=f"make it readable or add it to {OWN}")
