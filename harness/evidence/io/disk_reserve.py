"""Handle a disk that fills up while evidence is written.

Space for the final manifest and the verdict is reserved when the bundle is created.
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
"""The size of the space reserved for the final manifest and the verdict, in bytes."""


class Disk:
    """The disk that contains a bundle, with space reserved for the final manifest and the verdict.

    `full` is the error for the first record that did not fit, or None.

    If the disk is full, all methods except `last_words` raise HarnessError with the cause
    run.evidence_disk_full.
    """

    def __init__(self, bundle: Path) -> None:
        self.full: HarnessError | None = None
        self._reserve = bundle / RESERVE
        self._lock = threading.Lock()

    def reserve(self) -> None:
        """Reserve the space for the final manifest and the verdict."""
        with on_disk(self._reserve.parent):
            self._reserve.write_bytes(bytes(RESERVE_BYTES))

    def free(self) -> None:
        """Release the reserved space."""
        self._reserve.unlink(missing_ok=True)

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """Return a context manager for writing one record.

        After the disk has been full once, entering the context raises the first error again.
        """
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
        """Replace a file that contains a single document, such as a report."""
        with self._lock:
            replace_file(path, text)

    def last_words(self, path: Path, text: str) -> None:
        """Write the manifest or the verdict, using the reserved space if the disk is full.

        If the disk is full, `full` is set, but no error is raised.
        """
        try:
            self.replace(path, text)
        except HarnessError as error:
            self.full = self.full or error
            self.free()
            with contextlib.suppress(HarnessError):
                self.replace(path, text)
