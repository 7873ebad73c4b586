"""The bytes of files, each a file in a folder beside the database. Whole and on the disk, or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO


class Blobs:
    """A folder of files by token. What a process that was killed had not finished goes at the next start."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".*"):
            left.unlink()

    def path(self, token: str) -> Path:
        """Return where the bytes of a token are, if they are there. The route lets no slash in."""
        return self._folder / token.lstrip(".")

    @contextmanager
    def writing(self) -> Iterator[IO[bytes]]:
        """A new file to write into. It is gone after the block unless `keep` was called."""
        with NamedTemporaryFile(dir=self._folder, prefix=".", delete=False) as file:
            try:
                yield file
            finally:
                Path(file.name).unlink(missing_ok=True)

    def keep(self, file: IO[bytes], token: str) -> None:
        """Flush a file to the disk and give it its name, at once and for good."""
        file.flush()
        os.fsync(file.fileno())
        Path(file.name).rename(self.path(token))
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
