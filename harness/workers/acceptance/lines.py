"""Messages between the coordinator and its agents: one JSON document a line, over TCP."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

LONGEST = 1 << 20
"""Bytes of a message that are read at most."""


class Line:
    """One end of a connection. Any thread may send; one may read."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.settimeout(None)
        self._connection = connection
        self._reader = connection.makefile("rb")
        self._lock = threading.Lock()
        self.own: str = connection.getsockname()[0]
        """The own address, as the other end reaches it."""

    def send(self, message: dict[str, Any]) -> bool:
        """Send it. False where the other end is gone."""
        try:
            with self._lock:
                self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield messages until the other end goes, or says what is none."""
        try:
            while line := self._reader.readline(LONGEST):
                message = json.loads(line)
                if not isinstance(message, dict):
                    return
                yield message
        except (OSError, ValueError):
            return

    def close(self) -> None:
        """End the connection; a read on it returns."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
