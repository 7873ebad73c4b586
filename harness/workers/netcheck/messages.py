"""Exchange messages with another rank over a TCP connection.

A message consists of a 16-byte header (8 bytes for MARK, 4 for the kind, 4 for the body's length) and a body.
greeting.py lists the kinds.

In a job of 64 ranks, the threads of many pods compete for few CPUs, and another thread may run after each
system call. Therefore, this module makes few system calls: the kernel applies the timeouts, and one call may
receive several messages.
"""

from __future__ import annotations

import socket
import struct
import time

MARK = b"netchk1\n"
HEADER = struct.Struct("!8s4sI")
MOST = 64 * 1024 * 1024
"""Maximum length of a body in bytes."""
_READ = 1 << 16
"""Number of bytes to request from the socket at once, even if fewer are needed."""


def header(kind: bytes, length: int) -> bytes:
    """Return the 16-byte header for a message with a body of `length` bytes."""
    return HEADER.pack(MARK, kind, length)


def parse_header(data: bytes | bytearray) -> tuple[bytes, int] | None:
    """Return the kind of the message at the start of `data`, and the length of its body in bytes.

    Returns None if the header is incomplete. Raises ValueError if the data is not a message.
    """
    if not MARK.startswith(bytes(data[: len(MARK)])):
        raise ValueError(f"it says {bytes(data[:16])!r}")
    if len(data) < HEADER.size:
        return None
    _, kind, length = HEADER.unpack_from(data)
    if length > MOST:
        raise ValueError(f"it says {bytes(data[:16])!r}")
    return kind, length


class Stream:
    """A connection on which messages are sent and received.

    `received` contains bytes that have already been read from the connection. All methods raise OSError if
    the connection fails (TimeoutError if it takes too long), and ValueError if the data is not a valid
    message. The parameter `ends` is a monotonic time.
    """

    def __init__(self, connection: socket.socket, received: bytes = b"") -> None:
        self.connection = connection
        self._received = bytearray(received)
        connection.setblocking(True)

    def send(self, message: bytes | memoryview, seconds: float) -> None:
        """Send all bytes of a message within `seconds` seconds."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(seconds))
        try:
            self.connection.sendall(message)
        except BlockingIOError:
            raise TimeoutError(f"nothing could be sent for {seconds:.0f} s") from None

    def call(self, kind: bytes, body: bytes, seconds: float) -> tuple[bytes, bytes]:
        """Send one message, and return the kind and body of the response."""
        ends = time.monotonic() + seconds
        if len(body) > _READ:  # Sending the header in a separate packet is cheaper than copying the body.
            self.send(header(kind, len(body)), seconds)
            self.send(body, seconds)
        else:
            self.send(header(kind, len(body)) + body, seconds)
        return self.receive(ends)

    def receive(self, ends: float) -> tuple[bytes, bytes]:
        """Receive one message, and return its kind and body."""
        kind, length = self.receive_header(ends)
        return kind, self.receive_body(length, ends)

    def receive_header(self, ends: float) -> tuple[bytes, int]:
        """Receive the header of a message, and return its kind and the length of its body."""
        while (parsed := parse_header(self._received)) is None:
            self._received += self._read(HEADER.size, ends)
        self._take(HEADER.size)
        return parsed

    def receive_body(self, length: int, ends: float) -> bytes:
        """Receive a body of `length` bytes, and return it."""
        while len(self._received) < length:
            self._received += self._read(length - len(self._received), ends)
        return self._take(length)

    def drain(self, length: int, ends: float) -> None:
        """Receive a body of `length` bytes without storing it."""
        length -= len(self._take(min(length, len(self._received))))
        while length:
            data = self._read(length, ends)
            self._received += data[length:]
            length -= min(length, len(data))

    def _take(self, length: int) -> bytes:
        taken = bytes(self._received[:length])
        del self._received[:length]
        return taken

    def _read(self, needed: int, ends: float) -> bytes:
        seconds = max(0.01, ends - time.monotonic())
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval(seconds))
        try:
            data = self.connection.recv(min(max(needed, _READ), 1 << 20))
        except BlockingIOError:
            raise TimeoutError(f"no answer for {seconds:.0f} s") from None
        if not data:
            raise ConnectionResetError("the connection ended")
        return data


def timeval(seconds: float) -> bytes:
    """Return a struct timeval for a socket option, at least 1 ms because 0 means no timeout."""
    return struct.pack("ll", *divmod(max(1000, int(seconds * 1e6)), 1_000_000))
