"""API keys: the tracker's own key, the keys of projects and the keys of launches.

A client sends its key with every request. The key of a project or a launch consists of a scope and an HMAC of
that scope, so the holder of a key cannot derive keys with another scope. A launch key identifies the launch
that sent a request. The client's headers do not identify the launch, because several launches can have the
same names and steps, and even the same address behind a proxy.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from dataclasses import dataclass

_SEALED = re.compile(rb"mlpi_([pl])([A-Za-z0-9_-]{1,32768})\.([0-9a-f]{64})")
MAX_PROJECT_BYTES = 1024


@dataclass(frozen=True)
class Grant:
    """The permissions that a key grants.

    If all fields are None, as for the tracker's own key, access is not restricted.
    """

    project: str | None = None
    """The only project that the key can access. None means all projects."""
    launch: str | None = None
    """The nonce of the launch for which the key was created, or None for the other kinds of keys."""
    run: str | None = None
    """The run id of the launch, or None for the other kinds of keys. The key of a launch gives access to the
    run with this id and to the runs that the launch created, but not to other runs in the project."""


OWNER = Grant()
"""The permissions of the tracker's own key."""


def launch_key(key: str, launch: str, *, project: str, run: str) -> str:
    """Return a launch's key, derived from the tracker's own key and the launch's nonce and run id."""
    return _sealed(key, "l", json.dumps([project, run, launch], ensure_ascii=False))


def project_key(key: str, project: str) -> str:
    """Return a project's key, derived from the tracker's own key.

    The same arguments always give the same key.
    """
    return _sealed(key, "p", project)


def is_sealed(presented: bytes) -> bool:
    """Return whether a string looks like a project key or a launch key.

    Such keys are too long to be guessed.
    """
    return _SEALED.fullmatch(presented) is not None


def grant_of(presented: bytes, key: bytes) -> Grant | None:
    """Return the permissions of a key, or None if this tracker does not accept the key."""
    if hmac.compare_digest(presented, key):
        return OWNER
    parts = _SEALED.fullmatch(presented)
    if parts is None:
        return None
    kind, text = parts[1].decode(), parts[2]
    try:
        scope = base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    # Compare the whole key, because several base64 strings decode to the same scope.
    if not hmac.compare_digest(presented, _sealed(key.decode(), kind, scope).encode()):
        return None
    if kind == "p":
        return Grant(project=scope)
    project, run, launch = json.loads(scope)
    return Grant(project=project, launch=launch, run=run)


def _sealed(key: str, kind: str, scope: str) -> str:
    encoded = base64.urlsafe_b64encode(scope.encode()).rstrip(b"=").decode()
    return f"mlpi_{kind}{encoded}.{_seal(key.encode(), kind, scope)}"


def _seal(key: bytes, kind: str, scope: str) -> str:
    """Return the HMAC of a scope, with a prefix that distinguishes project keys from launch keys."""
    prefix = {"p": "project/", "l": "launch/"}[kind]
    return hmac.new(key, prefix.encode() + scope.encode(), hashlib.sha256).hexdigest()
