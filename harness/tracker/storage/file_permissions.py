"""Keep the database and the files readable for their owner only, whatever the umask is."""

from __future__ import annotations

import os
from pathlib import Path

DATABASE_SUFFIXES = ("", "-wal", "-shm")
OTHERS = 0o007


def make_private(database: Path) -> None:
    """Create the database file if it is missing, so that only its owner can read it.

    SQLite gives its write-ahead log and its shared memory the permissions of the database. If an existing
    file is accessible for all users, as an earlier version of the tracker created it, only its owner keeps
    access. If only its group has access, that access was granted on purpose and is kept.
    """
    os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for suffix in DATABASE_SUFFIXES:
        restrict(database.with_name(database.name + suffix), 0o600)


def restrict(path: Path, mode: int) -> None:
    """Set the permissions of a file or folder that all users can access. Only its owner can do this."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    if status.st_mode & OTHERS and status.st_uid == os.geteuid():
        path.chmod(mode)
