"""Store uploaded files in a folder next to the database.

A file gets its final name only when it is complete.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

from harness.tracker.storage.file_permissions import restrict


class Blobs:
    """A folder of files named by token, readable only by its owner.

    Incomplete files left by a killed server are deleted at the next start.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        restrict(folder, 0o700)
        for leftover in folder.glob(".*"):
            leftover.unlink()

    def path(self, token: str) -> Path:
        """Return the path at which the file with this token is stored.

        The file need not exist. Tokens do not contain slashes.
        """
        return self._folder / token.lstrip(".")

    @contextmanager
    def writing(self) -> Iterator[IO[bytes]]:
        """Return a context manager that creates a temporary file.

        At exit, the file is deleted unless `store` was called.
        """
        with NamedTemporaryFile(dir=self._folder, prefix=".", delete=False) as file:
            try:
                yield file
            finally:
                Path(file.name).unlink(missing_ok=True)

    def store(self, file: IO[bytes], token: str) -> None:
        """Flush a temporary file to disk, and rename it atomically to its final name."""
        file.flush()
        os.fsync(file.fileno())
        Path(file.name).rename(self.path(token))
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
