"""Check that a directory is writable before the harness creates objects that it must record in this
directory."""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness.core.errors import HarnessError, UsageError


def exists(path: Path) -> bool:
    """Return whether a path exists.

    Unlike Path.exists(), this function raises OSError if this cannot be determined.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def check(folder: Path, setting: str) -> None:
    """Create and remove a file in `folder` or, if it does not exist, in its closest existing parent.

    Raises UsageError if a path component is a file, and HarnessError if writing fails. The messages name
    `setting`, the option or variable with which the user can choose another directory.
    """
    place, hint = folder.absolute(), f"choose another folder with {setting}"
    try:
        while not exists(place):
            place = place.parent
        if not place.is_dir():
            raise UsageError(f"expected a folder at {folder}, but {place} is a file", hint=hint)
        with tempfile.TemporaryFile(dir=place):
            return
    except OSError as error:
        reason = error.strerror or error
        raise HarnessError(f"cannot write to {folder}: {reason} at {place}", hint=hint) from None
