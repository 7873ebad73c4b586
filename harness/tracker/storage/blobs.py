"""Store the bytes of files in a folder beside the database.

A file is either complete and on disk, or absent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO


class Blobs:
    """A folder of files by token. Incomplete files of a killed process are deleted at the next start."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".*"):
            left.unlink()

    def path(self, token: str) -> Path:
        """Return the path of a token's file, which may not exist. The route accepts no slash in a token."""
        return self._folder / token.lstrip(".")

    @contextmanager
    def writing(self) -> Iterator[IO[bytes]]:
        """Provide a new temporary file. It is deleted after the block unless `keep` was called."""
        with NamedTemporaryFile(dir=self._folder, prefix=".", delete=False) as file:
            try:
                yield file
            finally:
                Path(file.name).unlink(missing_ok=True)

    def keep(self, file: IO[bytes], token: str) -> None:
        """Flush a file to disk and rename it atomically to its final name."""
        file.flush()
        os.fsync(file.fileno())
        Path(file.name).rename(self.path(token))
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
