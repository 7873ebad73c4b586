"""Read and write small files through which processes communicate. Files are written atomically."""

from __future__ import annotations

import errno
import json
import os
import shutil
from typing import Any


def read_json(path: str) -> dict[str, Any]:
    """Return the JSON object in a file, or {} if the file does not exist or contains another type of JSON
    value."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except FileNotFoundError:
        return {}
    return document if isinstance(document, dict) else {}


def write_json(path: str, document: dict[str, Any]) -> None:
    write_text(path, json.dumps(document))


def write_text(path: str, text: str) -> None:
    temporary = f"{path}.{os.urandom(6).hex()}"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)


FULL = (errno.ENOSPC, errno.EDQUOT)
UNSUPPORTED = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
"""The errors with which file systems such as SMB and blob storage refuse links and permission bits."""


def volume_problem(error: Exception, folder: str) -> str:
    """Return what to do if a folder's volume is full or unsuitable, or "" if the error has another cause.

    `error` occurred while code was written to the folder. Sending the same code again would not help.
    """
    if not isinstance(error, OSError):
        return ""
    if error.errno in FULL:
        usage = shutil.disk_usage(folder)
        return (
            f"the volume of {folder} is full, with {usage.free} of {usage.total} bytes free "
            f"({error.strerror}): add large files to .torchrunignore, or use a larger volume"
        )
    if error.errno in UNSUPPORTED:
        return (
            f"the volume of {folder} does not permit symbolic links or permission bits "
            f"({error.strerror}: {error.filename}): use a storage class with a POSIX file system, such as "
            "NFS or a block device, instead of SMB or blob storage"
        )
    return ""
