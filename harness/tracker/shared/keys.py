"""API keys of launches and of projects. The client sends its key with every request.

The key shows which launch sent a request. The client's headers do not, because launches can have the same
names and steps. Behind a proxy, even their addresses are equal. The tracker's own key is valid too, but
belongs to no launch. No other key can be derived from a project's key, because it contains an HMAC and not
the tracker's own key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass

_REST = re.compile(rb"(?:\.([A-Za-z0-9_-]{1,64}))?")
_PROJECT = re.compile(rb"mlpi_p([A-Za-z0-9_-]+)\.([0-9a-f]{64})")
PROJECT_MOST = 1024


@dataclass(frozen=True)
class Grant:
    """The permissions of a key."""

    launch: str | None = None
    """The launch for which the key was created."""
    project: str | None = None
    """The only project that the key can access. None means all projects."""


def launch_key(key: str, launch: str) -> str:
    """Return the key of a launch, derived from the tracker's own key and the launch's nonce."""
    return f"{key}.{launch}"


def project_key(key: str, project: str) -> str:
    """Return the key of a project, derived from the tracker's own key. All calls return the same key."""
    name = base64.urlsafe_b64encode(project.encode()).rstrip(b"=").decode()
    return f"mlpi_p{name}.{_seal(key.encode(), project)}"


def launch_of(given: bytes, key: bytes) -> str | None:
    """Return the launch to which a key belongs, "" for the tracker's own key, or None for any other key."""
    rest = _REST.fullmatch(given[len(key) :])
    if not hmac.compare_digest(given[: len(key)], key) or rest is None:
        return None
    return (rest[1] or b"").decode()


def grant_of(given: bytes, key: bytes) -> Grant | None:
    """Return the permissions of a key, or None if this tracker does not accept the key."""
    launch = launch_of(given, key)
    if launch is not None:
        return Grant(launch=launch or None)
    parts = _PROJECT.fullmatch(given)
    if parts is None or len(parts[1]) > 2 * PROJECT_MOST:
        return None
    try:
        project = base64.urlsafe_b64decode(parts[1] + b"=" * (-len(parts[1]) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    if not hmac.compare_digest(parts[2], _seal(key, project).encode()):
        return None
    return Grant(project=project)


def _seal(key: bytes, project: str) -> str:
    return hmac.new(key, b"project/" + project.encode(), hashlib.sha256).hexdigest()
