"""Encode a diagnosis as lines for the pod's log, and authenticate them with the launch's nonce.

    @netcheck1 <id> <part>/<parts> <base64 of a part of the compressed JSON> <MAC>

The acceptance tests print their checks in the same way, with a different prefix (acceptance/emit.py). `id` is
the same in all parts of a diagnosis. The MAC is the first 32 hex digits of HMAC-SHA256 over the text from the
id to the base64 data, with the nonce as the key. A line has at most MAX_LINE bytes, so that writing it to a
pipe is atomic.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
import zlib
from typing import Any

MARK = "@netcheck1 "
MAX_LINE = 4000
_CHUNK = 3800
MAX_JSON = 64 << 20
"""Maximum size of a diagnosis in bytes. The limit is needed because the job knows the nonce and could print a
diagnosis of any size."""
_BODY = r"(([0-9a-f]{16}) (\d{1,6})/(\d{1,6}) ([A-Za-z0-9+/=]+)) ([0-9a-f]{32})(?!\w)"


def encode(nonce: str, diagnosis: dict[str, Any], mark: str = MARK) -> list[str]:
    """Return the lines for a diagnosis, without newlines. `diagnosis` comes from `Diagnosis.as_dict`."""
    packed = base64.b64encode(zlib.compress(json.dumps(diagnosis).encode(), 9)).decode()
    name = hashlib.sha256(packed.encode()).hexdigest()[:16]
    chunks = [packed[at : at + _CHUNK] for at in range(0, len(packed), _CHUNK)]
    bodies = [f"{name} {number}/{len(chunks)} {chunk}" for number, chunk in enumerate(chunks, 1)]
    return [f"{mark}{body} {_mac(nonce, body)}" for body in bodies]


class Collector:
    """Collects lines in any order, and returns each complete diagnosis once. Lines may be repeated."""

    def __init__(self, nonce: str, mark: str = MARK) -> None:
        self._nonce = nonce
        self._line = re.compile(re.escape(mark) + _BODY)
        self._parts: dict[tuple[str, int], dict[int, str]] = {}
        self._delivered: set[str] = set()

    def feed(self, line: str) -> dict[str, Any] | None:
        """Add a log line. Return the diagnosis if the line completes it, otherwise None."""
        match = self._line.search(line)
        if not match or not hmac.compare_digest(match[6], _mac(self._nonce, match[1])):
            return None
        name, count = match[2], int(match[4])
        chunks = self._parts.setdefault((name, count), {})
        chunks[int(match[3])] = match[5]
        if name in self._delivered or set(chunks) != set(range(1, count + 1)):
            return None
        self._delivered.add(name)
        try:
            decompressor = zlib.decompressobj()
            packed = base64.b64decode("".join(chunks[n] for n in sorted(chunks)))
            text = decompressor.decompress(packed, MAX_JSON)
            document = json.loads(text) if decompressor.eof else None
        except (ValueError, RecursionError, zlib.error, binascii.Error):
            return None
        return document if isinstance(document, dict) else None


def _mac(nonce: str, body: str) -> str:
    return hmac.new(nonce.encode(), body.encode(), "sha256").hexdigest()[:32]
