"""Say which code a process runs: the files of the folders that the harness filled, the image, torch and
Pluto's client.

    code_digest.facts()            # at the start: every file there, and what was imported of them
    code_digest.facts(last=True)   # at the end: what was imported, and whether it changed meanwhile

Import this module as early as possible, because it looks at the files as it is imported: what changes later
is told. Standard library only.

A fact is [what, name, value]:
    ["file", path, sha256]      a file as it was when this module was imported ("": it could not be read)
    ["ran", path, sha256]       a file that was imported, or is the program, as it is now
    ["touched", path, ""]       … and it was written to or replaced since this module was imported
    ["stale", path, ""]         … and its bytecode is of another source, so what ran is not what lies there
    ["stack", name, value]      image, python, packages, torch, pluto: versions and digests
    ["client", path, ""]        a file of Pluto's client that is not as it was installed
    ["whole", "", ""]           all files there were told
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import importlib.util
import marshal
import os
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

Fact = list[str]
PLACES = tuple(dict.fromkeys(["/workspace", os.path.dirname(os.path.abspath(__file__))]))
"""The folder that the harness fills in its worker image, and the one that this module itself came in."""
IMAGE = "/etc/pluto-e2e-harness.image"
"""The worker image's own tag, written into it when it is built (Dockerfile)."""
CLIENT = "pluto-ml"
MOST_FILES, MOST_BYTES = 500, 32 << 20
"""Files below the places that are looked at, and their size in all. Those that are imported always are."""
LONGEST = 400
"""Characters of a name or value, so that a fact fits into a frame however it is escaped."""
_PYC_HEADER = 16


class Files:
    """The files of some folders, as they were when this object was made."""

    def __init__(self, places: tuple[str, ...] = PLACES) -> None:
        self.places = tuple(os.path.abspath(place) for place in places)
        self.cut = False
        self._first = {path: (_state(path), _sha256(path)) for path in self._listed()}

    def facts(self, last: bool = False) -> Iterator[Fact]:
        """Yield what is to be told of them. `last`: not of those that never ran."""
        ran = dict(self._ran())
        now = {path: _sha256(path) for path in ran}
        for path, (state, digest) in self._first.items():
            if path in ran or not last:
                yield ["file", path, digest]
            if path in ran and (state != _state(path) or digest != now[path]):
                yield ["touched", path, ""]
        for path, cached in ran.items():
            yield ["ran", path, now[path]]
            if _stale(path, cached):
                yield ["stale", path, ""]
        if not self.cut and not last:
            yield ["whole", "", ""]

    def _listed(self) -> Iterator[str]:
        count = total = 0
        for place in self.places:
            for folder, folders, names in os.walk(place):
                folders[:] = sorted(name for name in folders if name != "__pycache__")
                for name in sorted(names):
                    path = os.path.join(folder, name)
                    count, total = count + 1, total + (_state(path) or (0, 0, 0))[2]
                    if count > MOST_FILES or total > MOST_BYTES:
                        self.cut = True
                        return
                    yield path

    def _ran(self) -> Iterator[tuple[str, str]]:
        """Yield each imported file of the places, and the file of its bytecode or ""."""
        inside = tuple(real + os.sep for place in self.places for real in (place, os.path.realpath(place)))
        for said in _modules().values():
            path = said.get("__file__")
            if isinstance(path, str) and (path := os.path.abspath(path)).startswith(inside):
                yield path, str(getattr(said.get("__spec__"), "cached", None) or "")


def facts(last: bool = False) -> list[Fact]:
    """Return the facts of this process. It takes some 30 ms the first time. `last`: see Files.facts."""
    found = [*_FILES.facts(last), *_stack(), *_client()]
    if not last:  # what a program imports may add to the paths
        found.append(["stack", "packages", _packages()])
    return [[what, name[:LONGEST], value[:LONGEST]] for what, name, value in found]


def _modules() -> dict[str, dict[str, Any]]:
    """Map each imported module to its own variables. To ask a lazy module for one would load it."""
    return {name: getattr(module, "__dict__", {}) for name, module in list(sys.modules.items())}


def _state(path: str) -> tuple[int, int, int] | None:
    """Return what changes whenever a file is written or replaced, its size last."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size


def _sha256(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


@cache
def _stale(path: str, cached: str) -> bool:
    """Whether the bytecode that Python takes for a source is of another source.

    Python compares time and size, or a hash of the source, or nothing (PEP 552).
    """
    try:
        with open(cached, "rb") as file:
            head, body = file.read(_PYC_HEADER), file.read()
        with open(path, "rb") as file:
            source = file.read()
        if not _taken(head, path, source):
            return False
        code = marshal.loads(body)  # noqa: S302 - Python itself has just run it
        return bool(code != compile(source, path, "exec", dont_inherit=True))
    except (OSError, ValueError, EOFError, TypeError, SyntaxError):
        return False  # there is none, or Python could not have taken it either


def _taken(head: bytes, path: str, source: bytes) -> bool:
    """Whether Python takes bytecode with this header for a source: where it may not be written to, old
    bytecode stays beside a new source.
    """
    by_hash, checked = head[4] & 1, head[4] & 2
    if by_hash:
        return not checked or head[8:] == importlib.util.source_hash(source)
    found = os.stat(path)
    written = (int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF)
    return head[8:] == b"".join(number.to_bytes(4, "little") for number in written)


def _stack() -> Iterator[Fact]:
    for name, value in {
        "image": _text(IMAGE),
        "python": sys.version.split()[0],
        "torch": _version("torch"),
        "torch_loaded": str(getattr(sys.modules.get("torch"), "__version__", "")),
        "pluto": _version(CLIENT),
    }.items():
        yield ["stack", name, value]


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


@cache
def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _packages() -> str:
    """Return one digest of the names and versions of everything that is installed."""
    found: set[str] = set()
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        found.update(name for name in names if name.endswith((".dist-info", ".egg-info")))
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()


def _client() -> Iterator[Fact]:
    """Yield one digest of the client's files, and each that is not as its RECORD says or is not its."""
    try:
        installed = importlib.metadata.distribution(CLIENT)
    except importlib.metadata.PackageNotFoundError:
        return
    digests: dict[str, str] = {}
    path: Any
    for row in csv.reader((installed.read_text("RECORD") or "").splitlines()):
        name, expected = [*row, "", ""][:2]
        if not expected.startswith("sha256="):
            continue
        path = os.path.abspath(str(installed.locate_file(name)))
        digests[path] = _sha256(path)
        wanted = base64.urlsafe_b64decode(expected.removeprefix("sha256=") + "==").hex()
        # A .pth file is run by Python, and may be removed so that it is not.
        if digests[path] != wanted and (digests[path] or not name.endswith(".pth")):
            yield ["client", path, ""]
    if not digests:
        return
    for name, said in _modules().items():
        path = said.get("__file__")
        if (
            name.partition(".")[0] == "pluto"
            and isinstance(path, str)
            and os.path.abspath(path) not in digests
        ):
            yield ["client", os.path.abspath(path), ""]
    # Not of the paths: they may differ between two images whose client is the same.
    yield ["stack", "pluto_files", hashlib.sha256("".join(digests.values()).encode()).hexdigest()]


_FILES = Files()
