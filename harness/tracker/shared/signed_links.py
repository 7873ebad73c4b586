"""Expiring signed links for reading or uploading one file, like Pluto's presigned URLs."""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import Literal

SECONDS = 3600
"""The number of seconds for which a signed link is valid."""
Purpose = Literal["read", "upload"]


def link(key: str, purpose: Purpose, token: str) -> str:
    """Return the last path segments of a new signed link: token, expiry time (Unix seconds) and signature."""
    expires_at = f"{int(time.time()) + SECONDS}"
    return f"{token}/{expires_at}/{_seal(key, purpose, token, expires_at)}"


def right(key: str, purpose: Purpose, token: str, expires_at: str, seal: str) -> bool:
    """Return whether this tracker signed the link for this purpose and the link has not expired."""
    is_signed = hmac.compare_digest(seal.encode(), _seal(key, purpose, token, expires_at).encode())
    return is_signed and int(expires_at) >= time.time()


def _seal(key: str, purpose: Purpose, token: str, expires_at: str) -> str:
    return hmac.new(key.encode(), f"{purpose}/{token}/{expires_at}".encode(), hashlib.sha256).hexdigest()
