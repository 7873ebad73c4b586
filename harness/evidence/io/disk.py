"""Handle a disk that fills up while evidence is written.

Room for the last documents is reserved at the start.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from harness.core.errors import HarnessError
from harness.evidence.io.files import DISK_FULL, on_disk, replace_file

RESERVE = ".reserve"
RESERVE_BYTES = 256 * 1024
"""Reserved for the manifest that says what happened, and for the verdict."""


class Disk:
    """The disk that a bundle is on. `full` is the error of the first record that did not fit, None before."""

    def __init__(self, bundle: Path) -> None:
        self.full: HarnessError | None = None
        self._reserve = bundle / RESERVE
        self._lock = threading.Lock()

    def reserve(self) -> None:
        """Reserve the room. As all methods here, it raises HarnessError, cause run.evidence_disk_full."""
        with on_disk(self._reserve.parent):
            self._reserve.write_bytes(bytes(RESERVE_BYTES))

    def free(self) -> None:
        """Free the reserved room for the last documents."""
        self._reserve.unlink(missing_ok=True)

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """Guard the writing of one record. After the first record that finds the disk full, none is taken."""
        if self.full is not None:
            raise self.full
        try:
            yield
        except HarnessError as error:
            if error.cause == DISK_FULL:
                self.full = error
                self.free()
            raise

    def replace(self, path: Path, text: str) -> None:
        """Write a file that is one whole document and not a list of records."""
        with self._lock:
            replace_file(path, text)

    def last_words(self, path: Path, text: str) -> None:
        """Write one of the last documents, into the reserved room when the disk is full.

        `full` tells when that was not enough.
        """
        try:
            self.replace(path, text)
        except HarnessError as error:
            self.full = self.full or error
            self.free()
            with contextlib.suppress(HarnessError):
                self.replace(path, text)
