"""Links to files that hold for some time, as Pluto's presigned ones do."""

from __future__ import annotations

import hashlib
import hmac
import time

SECONDS = 3600
"""How long a link holds."""


def link(key: str, token: str) -> str:
    """Return the last parts of a link: the token, until when it holds (seconds of Unix), and the seal."""
    until = f"{int(time.time()) + SECONDS}"
    return f"{token}/{until}/{_seal(key, token, until)}"


def right(key: str, token: str, until: str, seal: str) -> bool:
    """Return whether a link was made here and still holds."""
    made = hmac.compare_digest(seal.encode(), _seal(key, token, until).encode())
    return made and int(until) >= time.time()


def _seal(key: str, token: str, until: str) -> str:
    return hmac.new(key.encode(), f"{token}/{until}".encode(), hashlib.sha256).hexdigest()
