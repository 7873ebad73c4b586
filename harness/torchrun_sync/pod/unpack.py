"""Unpack an archive's files, folders and links into a workspace of limited size.

Nothing is written outside the workspace. shutil.unpack_archive is not used, because it has no size limit, and
because its protection against paths that leave the folder depends on the image's Python version. Several
versions have vulnerabilities (CVE-2025-4517, python/cpython#151558).
"""

from __future__ import annotations

import importlib
import os
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any, cast

from harness.workers.training.object_store import Failed

MAX_BYTES = 16 << 30
"""The maximum size of an unpacked workspace in bytes."""
MAX_FILES = 200_000
MAX_PATH = 1024
MAX_LINKS = 40
"""The maximum number of symlinks that are followed in a path, as in the kernel."""
MAX_HEADER = 1 << 24
"""The maximum size of a tar header in bytes. The size is limited, because tarfile reads pax headers
completely into memory."""
PIECE = 1 << 20
STORE = ".torchrun"
"""The folder in the workspace that contains the marker file of a complete download. Archives must not write
to this folder."""
FAT = 0
"""The value of `create_system` in the entries of a zip archive from Windows. Windows PowerShell separates the
parts of a path with backslashes, which the format does not permit."""
OPENERS = {".tar": "io", ".tar.gz": "gzip", ".tgz": "gzip", ".tar.bz2": "bz2", ".tar.xz": "lzma"}
"""Maps a file name's extension to the module whose `open` function reads files with this extension. An image
may lack some of these modules."""
ARCHIVES = (".zip", *OPENERS)


@dataclass
class Workspace:
    """The folder into which an archive is unpacked, with the number of files and bytes written so far."""

    root: str
    files: int = 0
    size: int = 0
    links: dict[str, str] = field(default_factory=dict)
    """The targets of an archive's links, keyed by path. The links are created last."""

    def place(self, name: str) -> str:
        """Return the absolute path for a name in an archive, and create the folders above it.

        Raises Failed if the path is outside the workspace, leads through a link, or is in the store's folder.
        """
        parts = _parts(name)
        folder = self.root
        for part in parts[:-1]:
            folder = os.path.join(folder, part)
            if os.path.islink(folder):
                raise Failed(f"{name!r} leads through the link {part!r}; expected a folder there")
            os.makedirs(folder, exist_ok=True)
        return os.path.join(folder, parts[-1])

    def counted(self, size: int = 0, files: int = 0) -> None:
        """Add to the number of bytes and files written so far.

        Raises Failed if the workspace exceeds its limits.
        """
        self.size, self.files = self.size + size, self.files + files
        if self.size > MAX_BYTES or self.files > MAX_FILES:
            raise Failed(
                f"expected a workspace of at most {MAX_FILES} files and {MAX_BYTES} bytes, "
                f"found at least {self.files} files and {self.size} bytes"
            )

    def write(self, name: str, content: IO[bytes], mode: int) -> None:
        """Write a file atomically. An existing link with this name is replaced, not followed."""
        self.counted(files=1)
        path = self.place(name)
        with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), delete=False) as temporary:
            try:
                while piece := content.read(PIECE):
                    self.counted(len(piece))
                    temporary.write(piece)
                os.chmod(temporary.name, 0o644 | mode & 0o111)
                os.replace(temporary.name, path)
            except BaseException:
                os.unlink(temporary.name)
                raise

    def make_folder(self, name: str) -> None:
        if any(part not in ("", ".") for part in name.split("/")):
            self.counted(files=1)
            self.place(f"{name}/{STORE}")  # `place` creates only the folder `name`, not STORE in it.

    def link(self, name: str, target: str) -> None:
        self.counted(files=1)
        self.links["/".join(_parts(name))] = target

    def make_links(self) -> None:
        """Create the archive's links.

        If any link leads out of the workspace, raise Failed without creating any links.
        """
        for name, target in self.links.items():
            if not target or target.startswith("/") or len(target) > MAX_PATH:
                raise Failed(f"the link {name!r} leaves the workspace: {target[:MAX_PATH]!r}")
            self._resolve(name)
        for name, target in self.links.items():
            path = self.place(name)
            if os.path.lexists(path):
                os.unlink(path)
            os.symlink(target, path)

    def _resolve(self, name: str) -> None:
        """Follow a link's path through the symlinks in the archive and on disk.

        Raises Failed if the path leads out of the workspace.
        """
        resolved: list[str] = []
        todo, remaining = name.split("/"), MAX_LINKS
        while todo:
            part = todo.pop(0)
            if part in ("", "."):
                continue
            if part == "..":
                if not resolved:
                    raise Failed(f"the link {name!r} leaves the workspace: {self.links[name]!r}")
                resolved.pop()
                continue
            resolved.append(part)
            path = "/".join(resolved)
            on_disk = os.path.join(self.root, path)
            target = self.links.get(path) or (os.readlink(on_disk) if os.path.islink(on_disk) else "")
            if target:
                remaining -= 1
                if not remaining or target.startswith("/"):
                    raise Failed(f"the link {name!r} leads through {path!r} to {target!r}: expected a file")
                resolved.pop()
                todo = target.split("/") + todo


def unpack(archive: str, workspace: Workspace) -> None:
    """Unpack an archive.

    The extension of its file name determines the format. Raises Failed if the archive cannot be unpacked.

    Hard links become copies. Devices, pipes and sockets are refused.
    """
    try:
        if archive.endswith(".zip"):
            _unzip(archive, workspace)
        else:
            module = next(OPENERS[end] for end in OPENERS if archive.endswith(end))
            with importlib.import_module(module).open(archive, "rb") as content, _tar(content) as tar:
                _untar(tar, workspace)
        workspace.make_links()
    except Failed:
        raise
    except OSError as error:
        if error.errno is not None:
            raise
        # For a file in another format, gzip and bz2 raise an OSError without errno.
        raise Failed(f"the archive cannot be unpacked: {type(error).__name__}: {error}") from None
    except Exception as error:  # The error type for a damaged or encrypted archive depends on the format.
        raise Failed(f"the archive cannot be unpacked: {type(error).__name__}: {error}") from None


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or not parts or ".." in parts or "\0" in name or len(name) > MAX_PATH:
        raise Failed(f"{name[:MAX_PATH]!r}: expected a path inside the workspace")
    if parts[0] == STORE:
        raise Failed(f"{name!r}: expected a path inside the workspace, not in {STORE}")
    return parts


def _unzip(archive: str, workspace: Workspace) -> None:
    with zipfile.ZipFile(archive) as zip_file:
        for info in zip_file.infolist():
            name = info.filename
            if info.create_system == FAT:
                name = name.replace("\\", "/")
            if name.endswith("/"):
                workspace.make_folder(name)
                continue
            mode = info.external_attr >> 16
            with zip_file.open(info) as content:
                if stat.S_ISLNK(mode):
                    workspace.link(name, content.read(MAX_PATH + 1).decode(errors="replace"))
                else:
                    workspace.write(name, content, mode)


def _tar(content: IO[bytes]) -> tarfile.TarFile:
    # tarfile.open already reads the first header, so it must read through _Headers.
    return tarfile.open(fileobj=cast("Any", _Headers(content)), mode="r:")


def _untar(tar: tarfile.TarFile, workspace: Workspace) -> None:
    for member in _members(tar):
        if member.isdir():
            workspace.make_folder(member.name)
        elif member.issym():
            workspace.link(member.name, member.linkname)
        elif member.islnk():
            other = os.open(workspace.place(member.linkname), os.O_RDONLY | os.O_NOFOLLOW)
            with os.fdopen(other, "rb") as source:
                workspace.write(member.name, source, member.mode)
        elif member.isreg():
            content = tar.extractfile(member)
            assert content is not None
            with content:
                workspace.write(member.name, content, member.mode)
        else:
            raise Failed(f"{member.name!r} is a device, a pipe or a socket; expected a file, folder or link")


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    headers = cast("_Headers", tar.fileobj)
    while (member := tar.next()) is not None:
        cast("Any", tar).members.clear()  # tarfile would otherwise keep each member's header in memory.
        headers.remaining = None
        yield member
        headers.remaining = MAX_HEADER


class _Headers:
    """A file object for tarfile that does not read large headers into memory.

    A member of a tar file can have several headers. Since Python 3.14, tarfile reads a large header in parts.
    """

    def __init__(self, content: IO[bytes]) -> None:
        self.seek, self.tell, self._content = content.seek, content.tell, content
        self.remaining: int | None = MAX_HEADER
        """The number of bytes that remain for the headers of the next member, or None while a member's
        content is read."""

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_HEADER:
            raise Failed(f"expected headers of at most {MAX_HEADER} bytes, found one of {size} bytes")
        if self.remaining is not None:
            self.remaining -= size
            if self.remaining < 0:
                raise Failed(f"expected headers of at most {MAX_HEADER} bytes for a file, found more")
        return self._content.read(size)
