"""Scan a folder before a sync, and return the entries of its selected files, with their digests."""

from __future__ import annotations

import json
import os
import stat
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from harness.core.errors import UsageError
from harness.core.progress import Progress
from harness.torchrun_sync.git_files import is_changing
from harness.torchrun_sync.ignored import OWN
from harness.torchrun_sync.pod.entries import Entry, leaves, tree_digest
from harness.torchrun_sync.pods import STORE
from harness.torchrun_sync.selection import Selection, escaped_path, unreadable
from harness.torchrun_sync.warnings import size_warnings, warnings

PIECE = 1 << 20
SHOWN = 5
Stamp = tuple[int, int, int, int]
"""A file's stamp, which changes when the file is written to. It consists of the file's size, its mtime and
ctime in nanoseconds, and its inode."""


@dataclass(frozen=True)
class Tree:
    """The selected content of a folder at a point in time."""

    top: Path
    entries: tuple[Entry, ...]
    skipped: tuple[str, ...] = ()
    """The paths of sockets, pipes and devices, which have no content to send."""
    excluded: tuple[tuple[str, str], ...] = ()
    """A (path, reason) pair for each path that is not sent. Folder paths end with a slash."""

    @cached_property
    def digest(self) -> str:
        return tree_digest(self.entries)

    @property
    def size(self) -> int:
        """Return the total number of bytes in all files."""
        return sum(entry["size"] for entry in self.entries if entry["kind"] == "file")

    def packed(self) -> bytes:
        return zlib.compress(json.dumps(self.entries).encode(), 1)

    def by_digest(self) -> dict[str, Entry]:
        return {entry["sha256"]: entry for entry in self.entries if entry["kind"] == "file"}


@dataclass
class Walker:
    """Scans a folder repeatedly. It reads a file again only if the file's stamp has changed."""

    top: Path
    warn: Progress = lambda _: None
    """A function that is called once for each warning about the folder's content."""
    _warned: set[str] = field(default_factory=set)
    _digests: dict[str, tuple[Stamp, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.top.is_dir():
            problem = "is a file" if self.top.exists() else "does not exist"
            raise UsageError(
                f"expected a folder to sync, but {self.top} {problem}", hint="name it with --dir FOLDER"
            )

    def scan(self) -> Tree:
        """Scan the folder and return its tree.

        Raises UsageError for a link that leads out of the folder, or for an unreadable file. `warn` is called
        during the scan, and therefore before anything is sent.
        """
        selection = Selection(self.top)
        links: list[tuple[str, os.stat_result]] = []
        others: list[tuple[str, os.stat_result]] = []
        for path, status in selection.walk():
            (links if stat.S_ISLNK(status.st_mode) else others).append((path, status))
        # Reading the files may take minutes, so what is known without reading them is reported first.
        self._warn_once(size_warnings([(path, s.st_size) for path, s in others if stat.S_ISREG(s.st_mode)]))
        entries = self._entries(links, selection)
        self._require_links_inside(entries)
        entries += self._entries(others, selection)
        self._forget({entry["path"] for entry in entries})
        if any(entry["path"] == STORE for entry in entries):
            raise UsageError(
                f"{self.top / STORE} cannot be sent, because a pod keeps the code in a folder of this name",
                hint=f"rename it, or add it to {OWN}",
            )
        tree = Tree(
            self.top,
            tuple(sorted(entries, key=lambda e: str(e["path"]))),
            tuple(selection.skipped),
            tuple(selection.excluded),
        )
        self._warn_once(f"note: {notice}" for notice in selection.notices)
        self._warn_once(warnings(self.top, tree.entries))
        return tree

    def _entries(self, paths: Sequence[tuple[str, os.stat_result]], selection: Selection) -> list[Entry]:
        """Return the entries of paths. Paths that no longer exist are left out."""
        entries: list[Entry] = []
        for path, status in paths:
            try:
                entries.append(self._entry(path, status, selection.executable.get(path)))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise unreadable(self.top / path, error) from None
        return entries

    def _warn_once(self, texts: Iterable[str]) -> None:
        for text in texts:
            if text not in self._warned:
                self._warned.add(text)
                self.warn(text)

    def stamps(self) -> dict[str, Stamp | str]:
        """Return the stamp of each file and the mode of each folder, keyed by path. Files are not read.

        The result changes whenever the tree changes.
        """
        return {
            path: f"{status.st_mode}" if stat.S_ISDIR(status.st_mode) else _stamp(status)
            for path, status in Selection(self.top).walk()
        }

    def is_changing(self) -> bool:
        """Return whether git is changing the folder's files, so that more changes follow within moments."""
        return is_changing(self.top)

    def _require_links_inside(self, entries: Sequence[Entry]) -> None:
        """Raise UsageError if a link's target is outside the folder, or is reached through a path outside the
        folder."""
        leaving = [e for e in entries if e["kind"] == "link" and leaves(e["path"], e["target"])]
        top = self.top.resolve()
        outside = [e for e in leaving if not Path(os.path.realpath(top / e["path"])).is_relative_to(top)]
        shown = outside or leaving
        links = ", ".join(f"{escaped_path(e['path'])} → {escaped_path(e['target'])}" for e in shown[:SHOWN])
        suffix = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
        if outside:
            raise UsageError(
                f"these links lead out of {self.top}, to files that pods do not have: {links}{suffix}",
                hint=f"add them to {OWN}, or replace them with copies of their targets",
            )
        if leaving:
            raise UsageError(
                f"expected relative links to files in {self.top}, "
                "because a pod keeps the files in a different "
                f"folder: {links}{suffix}",
                hint=f"make the links relative with `ln -sfnr TARGET LINK`, or add them to {OWN}",
            )

    def _entry(self, path: str, status: os.stat_result, executable: bool | None) -> Entry:
        """Return a path's entry. `executable` is None if the permission bits on the disk decide."""
        mode = stat.S_IMODE(status.st_mode) & 0o777
        if stat.S_ISDIR(status.st_mode):
            return {"path": path, "kind": "dir", "mode": mode | 0o700}
        if stat.S_ISLNK(status.st_mode):
            return {"path": path, "kind": "link", "target": os.readlink(self.top / path)}
        size, digest = self._digest(path)
        if executable is not None:
            mode = mode & ~0o111 | (mode & 0o444) >> 2 if executable else mode & ~0o111
        return {"path": path, "kind": "file", "mode": mode, "size": size, "sha256": digest}

    def _digest(self, path: str) -> tuple[int, str]:
        """Return the size and digest of a file.

        If the file changes during the scan, the sender detects the change later.
        """
        with (self.top / path).open("rb") as file:
            stamp = _stamp(os.fstat(file.fileno()))
            if (cached := self._digests.get(path)) and cached[0] == stamp:
                return stamp[0], cached[1]
            digest, size = sha256(), 0
            while piece := file.read(PIECE):
                digest.update(piece)
                size += len(piece)
            # The digest of a file that was just written is not cached, because a second write in the same
            # clock tick would not change the stamp.
            if _stamp(os.fstat(file.fileno())) == stamp and _settled(stamp):
                self._digests[path] = (stamp, digest.hexdigest())
            return size, digest.hexdigest()

    def _forget(self, paths: set[str]) -> None:
        for path in self._digests.keys() - paths:
            del self._digests[path]


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _settled(stamp: Stamp) -> bool:
    return time.time_ns() - max(stamp[1], stamp[2]) > 2_000_000_000
