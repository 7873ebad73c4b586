"""Frames on a byte stream.

The header of each frame contains the length and the SHA-256 of its payload. The protocol does not depend on
the end of the stream, because the end of an exec stream may be lost or arrive too early.
"""

from __future__ import annotations

import hashlib
import struct

HEADER = struct.Struct(">4s8sQ32s")
"""The format of a frame's header: magic number, kind, the payload's length in bytes, and the payload's
SHA-256."""
MAGIC = b"TRS1"
MAX_PAYLOAD = 16 << 20
"""The maximum size of a payload in bytes. The size is limited so that a wrong length cannot exhaust the
memory."""


class BadFrame(ValueError):
    """Raised if the received bytes are not a valid frame, or if the payload does not match its digest."""


def pack(kind: str, payload: bytes = b"") -> bytes:
    """Return a frame as bytes: the header, followed by the payload."""
    return HEADER.pack(MAGIC, kind.encode(), len(payload), hashlib.sha256(payload).digest()) + payload


class Frames:
    """A parser for frames in a byte stream that arrives in chunks."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, piece: bytes) -> None:
        self._buffer += piece

    def next_frame(self) -> tuple[str, bytes] | None:
        """Return the next frame's kind and payload, or None if the frame is incomplete. Raises BadFrame."""
        if not (self._buffer.startswith(MAGIC) or MAGIC.startswith(bytes(self._buffer[: len(MAGIC)]))):
            raise BadFrame(f"expected a frame, found {bytes(self._buffer[:80])!r}")
        if len(self._buffer) < HEADER.size:
            return None
        _, kind, length, digest = HEADER.unpack_from(self._buffer)
        if length > MAX_PAYLOAD:
            raise BadFrame(f"a frame announces {length} bytes; at most {MAX_PAYLOAD} are allowed")
        end = HEADER.size + length
        if len(self._buffer) < end:
            return None
        payload = bytes(self._buffer[HEADER.size : end])
        del self._buffer[:end]
        if hashlib.sha256(payload).digest() != digest:
            raise BadFrame(f"the payload of a {kind.rstrip(bytes(1))!r} frame does not match its SHA-256")
        return kind.rstrip(b"\0").decode("ascii", "replace"), payload
