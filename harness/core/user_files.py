"""Read users' files, with a size limit. user_yaml.py parses YAML.

Reading takes little time and memory regardless of a file's content. For an unusable file, UsageError names
the file and, if possible, the line. Pipes and devices are not read, because they might never end.
"""

from __future__ import annotations

import codecs
import errno
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO, Final

from harness.core.errors import UsageError

MAX_BYTES: Final = 1 << 20
"""Default maximum size of a user's file in bytes. Kubernetes objects are limited to 1.5 MiB."""
MAX_RECORD_BYTES: Final = 64 << 20
"""Maximum size in bytes of a file or line that the harness itself wrote: a ledger, or a document or line in a
bundle."""
MAX_DEPTH: Final = 64
"""Maximum depth of nested lists and mappings in a file. A pod template with affinities has a depth of about
20."""
_CONTROL = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BOMS = {
    codecs.BOM_UTF32_LE: "UTF-32",  # UTF-32's byte order mark starts with UTF-16's, so it must come first.
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_DOTTED = re.compile(r"""(?<![\w"'-])(?:["']?+[\w-]*+["']?+[ \t]*+\.[ \t]*+){64}""")
"""Matches a dotted TOML key with more than MAX_DEPTH parts. tomllib takes quadratic time in the number of
parts."""


class NotRegularError(OSError):
    """Raised if a path is a directory, pipe, socket or device rather than a regular file."""


class _Wrong(Exception):
    """An error in a file. Its message, such as "is not valid UTF-8: …", is appended to the file's name."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading bytes.

    Raises OSError, or NotRegularError if the file is not a regular file.
    """
    # Without O_NONBLOCK, opening a pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    problem = "a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device"
    raise NotRegularError(errno.EINVAL, f"is {problem}, but must be a regular file")


def read_bytes(path: Path, kind: str, *, hint: str = "", max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a file, which can have at most `max_bytes` bytes. Raises UsageError.

    `kind` is the kind of file to name in messages, such as "job file".
    """
    try:
        with open_regular(path) as file:
            data = file.read(max_bytes + 1)
            size = max(os.fstat(file.fileno()).st_size, len(data))
    except FileNotFoundError:
        raise UsageError(f"{kind} {path} does not exist", hint=hint) from None
    except NotRegularError as error:
        raise UsageError(f"{kind} {path} {error.strerror}", hint=hint) from None
    except OSError as error:
        raise UsageError(f"{kind} {path} cannot be read: {error.strerror or error}", hint=hint) from None
    if len(data) > max_bytes:
        raise UsageError(f"{kind} {path}: expected at most {max_bytes} bytes, found {size}", hint=hint)
    return data


def read_text(path: Path, kind: str, *, hint: str = "", max_bytes: int = MAX_BYTES) -> str:
    """Return the text of a file, which can have at most `max_bytes` bytes. The text is decoded as UTF-8
    regardless of the locale.

    `kind` is the kind of file to name in messages, such as "job file". Raises UsageError.
    """
    try:
        return _decoded(read_bytes(path, kind, hint=hint, max_bytes=max_bytes))
    except _Wrong as error:
        raise UsageError(f"{kind} {path} {error}", hint=hint) from None


def toml(path: Path, kind: str, *, hint: str = "", max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Read and parse a TOML file. Raises UsageError if the file cannot be read or is not valid TOML."""
    text = read_text(path, kind, hint=hint, max_bytes=max_bytes)
    if dotted := _DOTTED.search(text):
        line = text.count("\n", 0, dotted.start()) + 1
        raise UsageError(f"{kind} {path}, line {line}: a key can have at most {MAX_DEPTH} parts", hint=hint)
    import tomllib  # Imported here because most commands do not read a settings file.

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise UsageError(f"{kind} {path} has too many nested brackets", hint=hint) from None
    # TOMLDecodeError is a ValueError. So is the error for a date or number that Python cannot represent.
    except ValueError as error:
        raise UsageError(f"{kind} {path} is not valid TOML: {error}", hint=hint) from None


def _decoded(data: bytes) -> str:
    for mark, name in _BOMS.items():
        if data.startswith(mark):
            raise _Wrong(f"is encoded in {name}, but must be encoded in UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _Wrong(f"is not valid UTF-8: invalid byte 0x{data[error.start]:02x} on line {line}") from None
    if control := _CONTROL.search(text):
        line = text.count("\n", 0, control.start()) + 1
        raise _Wrong(f"is not a text file: control character U+{ord(control.group()):04X} on line {line}")
    return text
