"""Write files record by record or line by line.

If the disk is full, these functions raise HarnessError with the cause run.evidence_disk_full.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

from harness.core.errors import HarnessError
from harness.core.user_files import MAX_RECORD_BYTES, NotRegularError, open_regular
from harness.evidence.io.redaction import Redactor

DISK_FULL: Final = "run.evidence_disk_full"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_BLOCK = 1 << 20


@contextlib.contextmanager
def on_disk(path: Path) -> Iterator[None]:
    """Raise HarnessError instead of an OSError that a full disk caused. Other errors are raised unchanged."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise HarnessError(
            f"the evidence could not be written: {error.strerror} at {path}",
            hint="free some disk space, or set HARNESS_RUNS_DIR to a folder on another disk; the evidence "
            "recorded so far is kept",
            cause=DISK_FULL,
        ) from error


def replace_file(path: Path, text: str) -> None:
    """Replace a file atomically, so that readers never see an incomplete file, even if the disk is full."""
    temporary = path.with_name(f".{path.name}.tmp")
    with on_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.unlink(missing_ok=True)
            with temporary.open("x", encoding="utf-8") as file:  # Mode "x" does not follow symbolic links.
                file.write(text)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def bounded_lines(file: BinaryIO, limit: int) -> Iterator[bytes]:
    """Yield the lines of a file, including their line endings.

    A line longer than `limit` bytes is truncated to `limit` + 1 bytes.
    """
    while line := file.readline(limit + 1):
        yield line
        while len(line) > limit and not line.endswith(b"\n"):
            line = file.readline(limit + 1)


def last_lines(file: BinaryIO, count: int) -> tuple[int, list[bytes]]:
    """Return the number of lines in a file, and its last `count` lines, including their line endings.

    Earlier lines are counted but not kept in memory, because a log can contain several gigabytes. If the last
    lines exceed MAX_RECORD_BYTES in total, the earliest of them are omitted or truncated.
    """
    blocks: deque[tuple[int, bytes]] = deque()
    max_blocks = max(2, MAX_RECORD_BYTES // _BLOCK)
    total = kept_lines = 0
    while block := file.read(_BLOCK):
        newlines = block.count(b"\n")
        blocks.append((newlines, block))
        total, kept_lines = total + newlines, kept_lines + newlines
        while kept_lines - blocks[0][0] > count or len(blocks) > max_blocks:
            kept_lines -= blocks.popleft()[0]
    *complete, tail = b"".join(block for _, block in blocks).split(b"\n")
    lines = [line + b"\n" for line in complete] + ([tail] if tail else [])
    return total + bool(tail), lines[-count:] if count else []


class NotInsideError(OSError, ValueError):
    """Raised for a path that leads out of a bundle, for example through a symbolic link."""


def inside(folder: Path, relative_path: str) -> Path:
    """Return `folder` joined with a relative path.

    Raises NotInsideError if the result is outside `folder`. The check follows symbolic links, so a link in a
    bundle can only point to a file in the same bundle.
    """
    path = Path(relative_path)
    try:
        within = Path(os.path.realpath(folder / path)).is_relative_to(os.path.realpath(folder))
    except ValueError:  # The path contains a NUL character, or a character that cannot be encoded.
        within = False
    if not within or path.is_absolute() or ".." in path.parts:
        raise NotInsideError(errno.EPERM, "is outside the bundle", ascii(relative_path))
    return folder / path


def open_inside(folder: Path, relative_path: str) -> BinaryIO:
    """Open a regular file of a bundle for reading. Everything that reads a bundle's files uses this function.

    Raises OSError, NotInsideError for a path outside the bundle, and NotRegularError for a pipe or a device.
    NotRegularError is also raised for a sparse file with more than MAX_RECORD_BYTES in holes. Such a file is
    slow to read, even if it uses no disk space.
    """
    file = open_regular(inside(folder, relative_path))
    if _bytes_in_holes(file.fileno()) > MAX_RECORD_BYTES:
        file.close()
        raise NotRegularError(errno.EFBIG, "is a sparse file, which the harness does not write")
    return file


def _bytes_in_holes(descriptor: int) -> int:
    """Return the number of bytes in a sparse file's holes.

    Counting stops once the number exceeds MAX_RECORD_BYTES.
    """
    size = os.fstat(descriptor).st_size
    total = end = 0
    while end < size and total <= MAX_RECORD_BYTES:
        hole = os.lseek(descriptor, end, os.SEEK_HOLE)
        try:
            end = os.lseek(descriptor, hole, os.SEEK_DATA)
        except OSError as error:  # ENXIO means that no data follows the hole.
            if error.errno != errno.ENXIO:
                raise
            end = size
        total += end - hole
    os.lseek(descriptor, 0, os.SEEK_SET)
    return total


def names_inside(folder: Path, subfolder: str, suffix: str) -> list[str]:
    """Return the sorted names of files in a bundle's subfolder, such as "pod.jsonl" for the suffix ".jsonl".

    Returns an empty list if the subfolder does not exist or is outside the bundle.
    """
    try:
        return sorted(name for name in os.listdir(inside(folder, subfolder)) if name.endswith(suffix))
    except OSError:
        return []


class Appender:
    """A file to which complete records are appended. If the disk is full, a partial record is removed."""

    def __init__(
        self, path: Path, guard: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    ) -> None:
        """Open the file for appending. Every write runs inside the context manager that `guard` returns."""
        self.path = path
        self._guard = guard
        with guard(), on_disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._lock = threading.Lock()

    def append(self, data: bytes) -> int:
        """Append one record and return its offset. If writing fails, a partial record is removed."""
        with self._lock, self._guard(), on_disk(self.path):
            before = os.fstat(self._fd).st_size
            view = memoryview(data)
            try:
                while view:
                    view = view[os.write(self._fd, view) :]
            except OSError:
                os.ftruncate(self._fd, before)
                raise
            return before

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


class LogFile:
    """The log of one container. Each line is redacted and written as soon as it is complete."""

    def __init__(self, appender: Appender, redactor: Redactor) -> None:
        self._appender = appender
        self._stream = redactor.stream()
        self._ended = True
        self._lock = threading.Lock()

    def write(self, chunk: str | bytes) -> str:
        """Append a chunk of log text from the kubelet, and return the redacted text that was written.

        Secrets that are split across chunks or lines are redacted too. If a line might end with the beginning
        of a secret, the end of the line is held back and written together with the next line.
        """
        text = chunk.decode(errors="replace") if isinstance(chunk, bytes) else chunk
        with self._lock:
            return self._put(self._stream.feed(text))

    def close(self) -> None:
        """Write the incomplete last line, if any, and close the file."""
        with self._lock:
            self._put(self._stream.flush())
            if not self._ended:
                self._put("\n")
        self._appender.close()

    def _put(self, text: str) -> str:
        if text:
            self._appender.append(text.encode(errors="replace"))
            self._ended = text.endswith("\n")
        return text

    def __enter__(self) -> LogFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
