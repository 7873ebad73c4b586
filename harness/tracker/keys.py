"""Keys of launches. The client sends its key with every request, so each request is known to be of a launch.

No header of the client tells launches apart: a name, a step and an address may be equal, and behind a proxy
all addresses are. The tracker's own key is valid too, and is of no launch.
"""

from __future__ import annotations

import hmac
import re

_REST = re.compile(rb"(?:\.([A-Za-z0-9_-]{1,64}))?")


def launch_key(key: str, launch: str) -> str:
    """Return the key of a launch, from the tracker's own key and the launch's nonce."""
    return f"{key}.{launch}"


def launch_of(given: bytes, key: bytes) -> str | None:
    """Return the launch that a key was made for, "" for the tracker's own key, None for another key."""
    rest = _REST.fullmatch(given[len(key) :])
    if not hmac.compare_digest(given[: len(key)], key) or rest is None:
        return None
    return (rest[1] or b"").decode()
