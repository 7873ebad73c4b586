"""Exchange messages between the coordinator and its agents over TCP. Each message is one line of JSON."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

LONGEST = 1 << 20
"""Maximum size of a message in bytes."""


class Line:
    """One end of a connection. Any thread can send messages, but only one thread may read them."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.settimeout(None)
        self._connection = connection
        self._reader = connection.makefile("rb")
        self._lock = threading.Lock()
        self.own: str = connection.getsockname()[0]
        """The local IP address of the connection, at which the peer can reach this host."""

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message. Return False if the connection is broken."""
        try:
            with self._lock:
                self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield messages until the connection closes, or the peer sends an invalid message."""
        try:
            while line := self._reader.readline(LONGEST):
                message = json.loads(line)
                if not isinstance(message, dict):
                    return
                yield message
        except (OSError, ValueError):
            return

    def close(self) -> None:
        """Close the connection. This ends a pending read."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
