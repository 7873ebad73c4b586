"""Prove that folders can be written, before anything is created that would have to be recorded there."""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness.core.errors import HarnessError, UsageError


def prove(folder: Path, setting: str) -> None:
    """Create and remove a file where `folder` is, or would be made.

    Raises UsageError where a file is in the way, and HarnessError where the system allows no writing. Both
    name `setting`, with which the user chooses another folder.
    """
    place, hint = folder.absolute(), f"{setting} names another folder"
    try:
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            raise UsageError(f"a folder is expected at {folder}, and {place} is a file", hint=hint)
        with tempfile.TemporaryFile(dir=place):
            return
    except OSError as error:
        why = error.strerror or error
        raise HarnessError(f"{folder} cannot be written: {why} at {place}", hint=hint) from None
