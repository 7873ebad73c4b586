"""Write the content of a file that a pod is receiving. The partial content survives a lost connection."""

from __future__ import annotations

import hashlib
import os

from harness.torchrun_sync.pod.entries import Dropped, Refused

PIECE = 1 << 20


class Incoming:
    """The partially received content of a file.

    To compute the digest, the bytes received through an earlier connection are read again.
    """

    def __init__(self, path: str, sha: str, size: int, offset: int) -> None:
        self.path, self.part, self.sha, self.size = path, f"{path}.part", sha, size
        self._hash = hashlib.sha256()
        self.received = 0
        self._file = open(self.part, "a+b", buffering=0)  # noqa: SIM115
        self._file.truncate(offset)
        self._file.seek(0)
        while self.received < offset:
            piece = self._file.read(min(PIECE, offset - self.received))
            if not piece:
                raise Refused(f"only {self.received} bytes of {sha[:12]} were received; expected {offset}")
            self._hash.update(piece)
            self.received += len(piece)

    def write(self, piece: bytes) -> None:
        if self.received + len(piece) > self.size:
            raise Refused(f"{self.sha[:12]} is longer than the announced {self.size} bytes")
        remaining = memoryview(piece)
        while remaining:
            remaining = remaining[self._file.write(remaining) :]
        self._hash.update(piece)
        self.received += len(piece)

    def finish(self) -> None:
        """Check the complete content's digest, and rename the file to the digest.

        If the digest is wrong, delete the file and raise Dropped.
        """
        self._file.close()
        if self._hash.hexdigest() != self.sha:
            os.unlink(self.part)
            raise Dropped(f"the content received as {self.sha[:12]} has a different digest and was deleted")
        os.rename(self.part, self.path)

    def drop(self) -> None:
        self._file.close()
        os.unlink(self.part)
