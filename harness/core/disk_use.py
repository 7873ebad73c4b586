"""How much of a disk a folder takes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def taken(path: Path) -> int:
    """Return the bytes that a folder takes on the disk, as `du` counts them. Links are not followed."""
    total, folders = 0, [path]
    with suppress(OSError):
        total = path.lstat().st_blocks * 512
    while folders:
        # By scandir: a cache of 50 000 files takes pathlib a second.
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with suppress(OSError):  # it is being written, or removed
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
    return total
