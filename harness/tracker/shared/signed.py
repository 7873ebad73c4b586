"""Signed links to files. The links expire, like Pluto's presigned URLs."""

from __future__ import annotations

import hashlib
import hmac
import time

SECONDS = 3600
"""Seconds for which a link is valid."""


def link(key: str, token: str) -> str:
    """Return the last path segments of a link: token, expiry time (Unix seconds) and signature."""
    until = f"{int(time.time()) + SECONDS}"
    return f"{token}/{until}/{_seal(key, token, until)}"


def right(key: str, token: str, until: str, seal: str) -> bool:
    """Return whether this tracker created the link and it has not expired."""
    made = hmac.compare_digest(seal.encode(), _seal(key, token, until).encode())
    return made and int(until) >= time.time()


def _seal(key: str, token: str, until: str) -> str:
    return hmac.new(key.encode(), f"{token}/{until}".encode(), hashlib.sha256).hexdigest()
