"""Report which code a process runs: the harness's files, the image, torch and the Pluto client.

    code_digest.facts()            # at the start: all files, and which of them were imported
    code_digest.facts(last=True)   # at the end: the imported files, and whether they changed since

Import this module as early as possible. It reads the files when it is imported, and detects only later
changes. This module uses only the standard library.

A fact is [what, name, value]:
    ["file", path, sha256]      a file as it was when this module was imported ("" if it could not be read)
    ["ran", path, sha256]       a file that was imported or is the main script, with its current digest
    ["touched", path, ""]       a "ran" file that was written or replaced after this module was imported
    ["stale", path, ""]         a "ran" file whose bytecode differs from its source, so other code ran
    ["stack", name, value]      image, python, packages, torch, pluto: versions and digests
    ["client", path, ""]        a file of Pluto's client that differs from the installed package
    ["whole", "", ""]           the list of "file" facts is complete
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
PLACES = tuple(dict.fromkeys(["/workspace", os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]))
"""The folders whose files are reported: the one with the harness's files in the worker image, and the one
that contains this package."""
IMAGE = "/etc/pluto-e2e-harness.image"
"""The file that contains the worker image's tag, written when the image is built (Dockerfile)."""
CLIENT = "pluto-ml"
MOST_FILES, MOST_BYTES = 500, 32 << 20
"""Maximum number of files to read in PLACES, and their maximum total size in bytes. Imported files are always
read, even beyond these limits."""
LONGEST = 400
"""Maximum length of a name or value in characters, so that a fact fits into a frame even if it is escaped."""
_PYC_HEADER = 16


class Files:
    """The files in the given folders, with their state at the time when this object was created."""

    def __init__(self, places: tuple[str, ...] = PLACES) -> None:
        self.places = tuple(os.path.abspath(place) for place in places)
        self.cut = False
        self._first = {path: (_state(path), _sha256(path)) for path in self._list_files()}

    def facts(self, last: bool = False) -> Iterator[Fact]:
        """Yield the facts about the files. If `last` is true, omit files that were never imported."""
        imported = dict(self._imported_files())
        now = {path: _sha256(path) for path in imported}
        for path, (state, digest) in self._first.items():
            if path in imported or not last:
                yield ["file", path, digest]
            if path in imported and (state != _state(path) or digest != now[path]):
                yield ["touched", path, ""]
        for path, cached in imported.items():
            yield ["ran", path, now[path]]
            if _stale(path, cached):
                yield ["stale", path, ""]
        if not self.cut and not last:
            yield ["whole", "", ""]

    def _list_files(self) -> Iterator[str]:
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

    def _imported_files(self) -> Iterator[tuple[str, str]]:
        """Yield (path, path of the bytecode or "") for each imported file in the folders."""
        inside = tuple(real + os.sep for place in self.places for real in (place, os.path.realpath(place)))
        for namespace in _modules().values():
            path = namespace.get("__file__")
            if isinstance(path, str) and (path := os.path.abspath(path)).startswith(inside):
                yield path, str(getattr(namespace.get("__spec__"), "cached", None) or "")


def facts(last: bool = False) -> list[Fact]:
    """Return the facts about this process's code, in the format that the module's docstring describes.

    `last` is passed on to Files.facts. The first call takes about 30 ms.
    """
    all_facts = [*_FILES.facts(last), *_stack(), *_client()]
    if not last:  # Later imports may extend sys.path and change this digest.
        all_facts.append(["stack", "packages", _packages()])
    return [[kind, name[:LONGEST], value[:LONGEST]] for kind, name, value in all_facts]


def _modules() -> dict[str, dict[str, Any]]:
    """Return each imported module's `__dict__`, keyed by name. Attribute access would load lazy modules."""
    return {name: getattr(module, "__dict__", {}) for name, module in list(sys.modules.items())}


def _state(path: str) -> tuple[int, int, int] | None:
    """Return a file's (mtime, ctime, size), which change with each write or replacement, or None on error."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size


def _sha256(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


@cache
def _stale(path: str, cached: str) -> bool:
    """Return whether Python uses bytecode that was compiled from a different version of the source file.

    Python validates bytecode against the source's mtime and size, against its hash, or not at all (PEP 552).
    """
    try:
        with open(cached, "rb") as file:
            head, body = file.read(_PYC_HEADER), file.read()
        with open(path, "rb") as file:
            source = file.read()
        if not _accepts_bytecode(head, path, source):
            return False
        code = marshal.loads(body)  # noqa: S302 - Python itself has just run it
        return bool(code != compile(source, path, "exec", dont_inherit=True))
    except (OSError, ValueError, EOFError, TypeError, SyntaxError):
        # If Python could not use the bytecode, it has compiled the source instead.
        return False


def _accepts_bytecode(head: bytes, path: str, source: bytes) -> bool:
    """Return whether Python accepts bytecode with this header for a source file.

    Outdated bytecode remains next to a new source file if Python cannot write to the folder.
    """
    by_hash, checked = head[4] & 1, head[4] & 2
    if by_hash:
        return not checked or head[8:] == importlib.util.source_hash(source)
    status = os.stat(path)
    fields = (int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
    return head[8:] == b"".join(number.to_bytes(4, "little") for number in fields)


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
    """Return a single digest of the names and versions of all installed packages."""
    package_names: set[str] = set()
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        package_names.update(name for name in names if name.endswith((".dist-info", ".egg-info")))
    return hashlib.sha256("\n".join(sorted(package_names)).encode()).hexdigest()


def _client() -> Iterator[Fact]:
    """Yield a digest of the Pluto client, and each of its files that does not match the package's RECORD."""
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
        expected_digest = base64.urlsafe_b64decode(expected.removeprefix("sha256=") + "==").hex()
        # Python runs .pth files at startup. Users may delete such a file to prevent that.
        if digests[path] != expected_digest and (digests[path] or not name.endswith(".pth")):
            yield ["client", path, ""]
    if not digests:
        return
    for name, namespace in _modules().items():
        path = namespace.get("__file__")
        if (
            name.partition(".")[0] == "pluto"
            and isinstance(path, str)
            and os.path.abspath(path) not in digests
        ):
            yield ["client", os.path.abspath(path), ""]
    # The digest excludes the paths, because they may differ between two images with the same client.
    yield ["stack", "pluto_files", hashlib.sha256("".join(digests.values()).encode()).hexdigest()]


_FILES = Files(() if os.environ.get("HARNESS_RECORDER_MODE") == "admitted" else PLACES)
"""The files of this process. In a pod to which the admission policy added the recorder, no files are read,
because they do not belong to the harness."""
