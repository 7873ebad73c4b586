"""Keep the database and the files readable only by their owner, regardless of the umask."""

from __future__ import annotations

import os
from pathlib import Path

DATABASE_SUFFIXES = ("", "-wal", "-shm")
OTHERS = 0o007


def make_private(database: Path) -> None:
    """Create the database file if it is missing, and make it readable only by its owner.

    SQLite gives the write-ahead log and the shared-memory file the same permissions as the database. Files
    from earlier versions of the tracker may be accessible to all users. For such files, only the owner keeps
    access. If only a file's group has access, that access was granted on purpose and is kept.
    """
    os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for suffix in DATABASE_SUFFIXES:
        restrict(database.with_name(database.name + suffix), 0o600)


def restrict(path: Path, mode: int) -> None:
    """Set the permissions of a file or folder to `mode` if other users can access it and the current user
    owns it."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    if status.st_mode & OTHERS and status.st_uid == os.geteuid():
        path.chmod(mode)
