"""A disk that fills up while evidence is written: room for the last words is kept from the beginning."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from harness.core.errors import HarnessError
from harness.evidence.files import DISK_FULL, on_disk, replace_file

RESERVE = ".reserve"
RESERVE_BYTES = 256 * 1024
"""For the manifest that says what happened, and the verdict."""


class Disk:
    """The one that a bundle lies on. `full`: the error of the first record that did not fit, None before."""

    def __init__(self, bundle: Path) -> None:
        self.full: HarnessError | None = None
        self._reserve = bundle / RESERVE
        self._lock = threading.Lock()

    def reserve(self) -> None:
        """Raises HarnessError, cause run.evidence_disk_full, as everything here does."""
        with on_disk(self._reserve.parent):
            self._reserve.write_bytes(bytes(RESERVE_BYTES))

    def free(self) -> None:
        """Give back the room that is kept for the last words."""
        self._reserve.unlink(missing_ok=True)

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """Around every record: the first one that finds the disk full is the last one."""
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
        """A file that is no record but one document."""
        with self._lock:
            replace_file(path, text)

    def last_words(self, path: Path, text: str) -> None:
        """Written into the room kept for it when the disk is full; `full` tells when that was not enough."""
        try:
            self.replace(path, text)
        except HarnessError as error:
            self.full = self.full or error
            self.free()
            with contextlib.suppress(HarnessError):
                self.replace(path, text)
