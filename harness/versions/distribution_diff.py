"""Compare the files of two versions of a package, without importing or running them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Final
from zipfile import BadZipFile, ZipFile

from harness.core.errors import UsageError

_RECORDS: Final = ("RECORD", "WHEEL", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")
"""Files in the .dist-info folder that describe the installation and differ between any two versions."""
_INFO: Final = re.compile(r"^[^/]+\.(dist-info|data)/")


@dataclass(frozen=True)
class FileChange:
    """A file that differs between two versions. A size of None means that the version lacks the file."""

    name: str
    before: int | None
    after: int | None
    """`before` and `after` are sizes in bytes."""


@dataclass(frozen=True)
class Changes:
    """The differences between two versions of a package."""

    files: tuple[FileChange, ...]
    added: tuple[str, ...]
    """Dependencies (Requires-Dist) that only the second version has."""
    removed: tuple[str, ...]
    """Dependencies (Requires-Dist) that only the first version has."""


def of_wheels(before: Path, after: Path) -> Changes:
    """Return the differences between two wheels. Raises UsageError if a file is not a wheel."""
    return compare(wheel_files(before), wheel_files(after))


def of_folders(before: Path, after: Path) -> Changes:
    """Return the differences between two folders into which versions of a package were installed."""
    return compare(folder_files(before), folder_files(after))


def wheel_files(wheel: Path) -> dict[str, bytes]:
    """Return the files in a wheel. Raises UsageError if the file is not a wheel."""
    try:
        with ZipFile(wheel) as archive:
            return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    except (OSError, BadZipFile) as error:
        raise UsageError(f"{wheel} is not a readable wheel: {error}") from None


def folder_files(folder: Path) -> dict[str, bytes]:
    """Return the files in a folder, except for bytecode files."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.suffix != ".pyc"
    }


def compare(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Changes:
    """Return the differences between the files of two versions.

    Ignore the version in folder names such as client-1.0.dist-info, the version in the metadata, and files
    that only describe the installation.
    """
    one, other = _comparable(before), _comparable(after)
    changed = [
        FileChange(name, _size(one.get(name)), _size(other.get(name)))
        for name in sorted({*one, *other})
        if _digest(one.get(name)) != _digest(other.get(name))
    ]
    first, second = _requirements(before), _requirements(after)
    return Changes(
        tuple(changed),
        tuple(sorted(set(second) - set(first))),
        tuple(sorted(set(first) - set(second))),
    )


def _comparable(files: Mapping[str, bytes]) -> dict[str, bytes]:
    contents = {}
    for name, content in files.items():
        info = _INFO.match(name)
        base = name.rpartition("/")[2]
        if info is not None and (base in _RECORDS or base == "METADATA"):
            continue
        contents[_INFO.sub(r"*.\1/", name)] = content
    return contents


def _requirements(files: Mapping[str, bytes]) -> Sequence[str]:
    for name, content in files.items():
        if name.endswith(".dist-info/METADATA"):
            headers = HeaderParser().parsestr(content.decode(errors="replace"))
            return [" ".join(each.split()) for each in headers.get_all("Requires-Dist", [])]
    return []


def _size(content: bytes | None) -> int | None:
    return None if content is None else len(content)


def _digest(content: bytes | None) -> str:
    return "" if content is None else hashlib.sha256(content).hexdigest()
