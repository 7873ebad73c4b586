"""Reserve space for uploads before their bodies are read, so that parallel uploads cannot exceed the total
size limit."""

from __future__ import annotations

import threading


class Uploads:
    """The uploads in progress, with the number of bytes reserved for each, keyed by token. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}

    def begin(self, token: str) -> bool:
        """Begin an upload and return True. Return False if another upload with this token is in progress."""
        with self._lock:
            if token in self._sizes:
                return False
            self._sizes[token] = 0
            return True

    def reserve(self, token: str, size: int, free: int) -> bool:
        """Reserve `size` bytes for an upload and return True.

        Return False, and reserve nothing, if the uploads in progress would then exceed `free` bytes together.
        """
        with self._lock:
            fits = sum(self._sizes.values()) + size <= free
            if fits:
                self._sizes[token] = size
            return fits

    def stored(self, token: str) -> None:
        """Release the space reserved for an upload, because its file now counts as stored."""
        with self._lock:
            self._sizes[token] = 0

    def end(self, token: str) -> None:
        with self._lock:
            self._sizes.pop(token, None)
