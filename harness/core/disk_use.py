"""Measure the disk space used by a directory."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def bytes_used(path: Path) -> int:
    """Return the disk space used by a directory in bytes, as counted by `du`. Symlinks are not followed."""
    total, folders = 0, [path]
    with suppress(OSError):
        total = path.lstat().st_blocks * 512
    while folders:
        # os.scandir is faster: pathlib takes a second for a cache with 50 000 files.
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with suppress(OSError):  # The file or directory was removed during the walk.
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
    return total
