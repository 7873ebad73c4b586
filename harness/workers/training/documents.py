"""Read training documents: JSON Lines in a single file or in shards, plain or compressed.

The texts for a split, `train` or `val`, are in one of these places:

    DIR/train.jsonl               one file, also as train.jsonl.gz or train.jsonl.zst
    DIR/train/*                   shards in a folder, which may also be named train.jsonl
    DIR/train-0001.jsonl …     shards next to each other, also compressed

Shards are read in order of their names. No shard may be missing or exist twice, for example compressed
and decompressed. The compression (gzip, zstd) and the encoding (UTF-8, or UTF-16 and UTF-32, as written by
PowerShell) are detected from the content. CRLF, empty lines and byte order marks at the start of any line (as
in concatenated files) are accepted. Any other line that is not a JSON object with a text raises ValueError
with the file and line number.
"""

from __future__ import annotations

import codecs
import errno
import gzip
import io
import json
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

SPLITS = ("train", "val")
MAX_LINE = 256 << 20
"""Maximum length of a line in bytes. A file without line breaks would otherwise exhaust the memory."""
_NAMES, _COMPRESSIONS = (".jsonl", ".ndjson", ".json"), ("", ".gz", ".zst")
_SHARDS = tuple(f"{name}{compression}" for name in _NAMES for compression in _COMPRESSIONS)
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"
"""The last 3 bytes of the magic number of a skippable zstd frame. The first byte is 0x50 to 0x5f. Files from
pzstd begin with such a frame."""
_OF_COUNT = re.compile(r"(.*?)[-_.]?(\d+)[-_.]of[-_.](\d+)(?:[-_.][0-9a-f]{8,})?")
_PLAIN_NUMBER = re.compile(r"(|.*?\D)(?<!\d[-_.])(\d+)")
"""Patterns for the stem of a shard's name. The groups are the prefix, the shard's number and, in _OF_COUNT,
the number of shards."""
_OTHER_FORMATS = {
    b"PK\x03\x04": "a zip archive",
    b"BZh": "compressed by bzip2",
    b"\xfd7zXZ": "compressed by xz",
    b"7z\xbc\xaf": "a 7-Zip archive",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\x89HDF": "an HDF5 file",
    b"\x93NUMPY": "a NumPy array",
    b"SQLite format": "an SQLite database",
    b"\x04\x22\x4d\x18": "compressed by lz4",
    b"version https://": "a Git LFS pointer, which `git lfs pull` replaces with the file",
    b"<!DOCTYPE": "an HTML page, such as a server's error page",
    b"<html": "an HTML page, such as a server's error page",
    b"<?xml": "an XML document, such as an object store's error message",
}
_TAR, _TAR_OFFSET = b"ustar", 257
_KINDS = {
    stat.S_ISFIFO: "a FIFO",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}
_TYPES: dict[type, str] = {
    type(None): "null",
    bool: "a boolean",
    float: "a number",
    list: "an array",
    dict: "an object",
}


# -- files -----------------------------------------------------------------------------------------------
def files(folder: Path, split: str) -> list[Path]:
    """Return the files that contain a split's texts, in order.

    Raises ValueError if the files are missing or ambiguous, and OSError if the folder cannot be read.
    """
    entries = sorted(_entries(folder))
    forms = [[path] for path in entries if path.name in {f"{split}.jsonl{end}" for end in _COMPRESSIONS}]
    if flat := [path for path in entries if re.fullmatch(rf"{split}-\d+(-of-\d+)?", _stem(path) or "")]:
        forms.append(flat)
    shards = folder / split
    if _is_folder(shards) and (not forms or any(_stem(path) is not None for path in _entries(shards))):
        forms.append([shards])
    expected = f"{folder}: expected {split}.jsonl (also .gz or .zst), or shards in a folder {split}"
    if len(forms) > 1:
        names = " and ".join(form[0].name for form in forms)
        raise ValueError(f"{expected}; found {names}. Remove or rename the files that should not be used")
    if not forms:
        entry_names = [path.name for path in entries]
        rest = f" and {len(entry_names) - 6} more" if len(entry_names) > 6 else ""
        raise ValueError(f"{expected}; found {', '.join(entry_names[:6]) or 'nothing'}{rest}")
    paths = _shards(forms[0][0]) if _is_folder(forms[0][0]) else forms[0]
    for path in paths:
        _require_file(path)
    _require_all(paths)
    return paths


def _require_all(shards: Sequence[Path]) -> None:
    """Raise ValueError if a shard exists twice, or if there are fewer or more shards than their names state.

    `gzip -dk` and `zstd -d` keep the compressed file. If a dataset is written again with a different number
    of shards, as in `train-00001-of-00004`, the old shards remain. The trainer would read such texts twice.
    """
    sets: dict[str, dict[int, dict[int, Path]]] = {}
    firsts: dict[tuple[str, int | str], Path] = {}
    for path in shards:
        stem = _stem(path) or path.name
        of_count = _OF_COUNT.fullmatch(stem)
        number = of_count or re.fullmatch(r"(.*?)-(\d+)", stem)
        prefix, key = (number[1], int(number[2])) if number else (stem, "")
        total = of_count[3] if of_count else ""
        first = firsts.setdefault((f"{prefix}-of-{total}" if total else prefix, key), path)
        if first != path:
            raise ValueError(
                f"{path.parent}: expected each shard once; found {first.name} and {path.name}. Remove one of "
                "them, or rename one if their texts differ"
            )
        if number:
            sets.setdefault(prefix, {}).setdefault(int(total or 0), {})[int(number[2])] = path
    for counts in sets.values():
        if len(counts) > 1:
            names = " and ".join(next(iter(paths.values())).name for paths in counts.values())
            raise ValueError(
                f"{shards[0].parent}: expected shards of one set; found {names}. Remove the shards of the "
                "old set, or rename one set if their texts differ"
            )
        for count, paths in counts.items():
            numbers = range(count) if 0 in paths else range(1, count + 1)
            if count and set(paths) != set(numbers):
                name, missing = next(iter(paths.values())).name, sorted(set(numbers) - set(paths))
                # If shard 0 and shard `count` are both missing, it is not known whether the numbers begin
                # with 0 or 1.
                is_known = bool(missing) and (0 in paths or count in paths)
                which = f", without number {missing[0]}" if is_known else ""
                raise ValueError(
                    f"{shards[0].parent}: expected {count} shards, as {name}; found {len(paths)}{which}"
                )


def gap(shards: Sequence[Path]) -> str:
    """Return a warning that names the numbers missing among shards such as part-0, part-1, part-3, or "".

    Only a name such as `part-00000-of-00004` states how many shards exist, so this may be intended: the texts
    may be a sample, or a shard was removed on purpose. There is no warning if more numbers are missing than
    exist, because the numbers are then not consecutive, for example timestamps or a random sample. Nor is
    there one for dates, whose last number has other numbers before it.
    """
    numbered: dict[str, dict[int, str]] = {}
    for path in shards:
        stem = _stem(path) or path.name
        if not _OF_COUNT.fullmatch(stem) and (number := _PLAIN_NUMBER.fullmatch(stem)):
            numbered.setdefault(number[1], {})[int(number[2])] = path.name
    for found in numbered.values():
        first, last = min(found), max(found)
        count = last - first + 1 - len(found)
        if 0 < count <= len(found):
            missing = [number for number in range(first, last) if number not in found]
            names = ", ".join(map(str, missing[:5])) + (f" and {count - 5} more" if count > 5 else "")
            return (
                f"{shards[0].parent}: the numbers of the shards {found[first]} to {found[last]} have a gap: "
                f"{names} {'is' if count == 1 else 'are'} missing. If that is not intended, copy the shards "
                "again"
            )
    return ""


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except NotADirectoryError:
        raise ValueError(f"{folder}: expected a folder, found a file") from None


def _stem(path: Path) -> str | None:
    """Return a document file's name without its extensions, or None for any other file."""
    return next((path.name.removesuffix(end) for end in _SHARDS if path.name.endswith(end)), None)


def _shards(folder: Path) -> list[Path]:
    """Return the shards in a folder, except for hidden files and Spark's own files, such as _SUCCESS."""
    shards = sorted(path for path in _entries(folder) if not path.name.startswith((".", "_")))
    if others := [path for path in shards if _stem(path) is None]:
        raise ValueError(f"{folder}: expected only files {', '.join(_SHARDS)}; found {others[0].name}")
    if not shards:
        raise ValueError(f"{folder}: expected files {', '.join(_SHARDS)}; found none")
    return shards


def _is_folder(path: Path) -> bool:
    with suppress(OSError):
        return path.is_dir()
    return False


def _require_file(path: Path) -> None:
    """Raise ValueError if a path is not a regular file. Opening a FIFO would block."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise ValueError(f"{path}: expected a file, found a broken link") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError(f"{path}: expected a file, found a symlink loop") from None
        raise
    if not stat.S_ISREG(mode):
        kind = next((text for is_kind, text in _KINDS.items() if is_kind(mode)), "a folder")
        raise ValueError(f"{path}: expected a file, found {kind}")


# -- lines -----------------------------------------------------------------------------------------------
def documents(paths: Sequence[Path], field: str) -> Iterator[str]:
    """Yield each document's text. Raises ValueError with the file and line of the first problem."""
    for text in checked(paths, field):
        if isinstance(text, ValueError):
            raise text
        yield text


def checked(paths: Sequence[Path], field: str) -> Iterator[str | ValueError]:
    """Yield each document's text, or a ValueError if its line is invalid."""
    for path in paths:
        _require_file(path)
        number = 0
        try:
            with path.open("rb") as file:
                for number, line in enumerate(_lines(file), 1):
                    if line.strip():
                        try:
                            yield _text(line, field, number)
                        except ValueError as error:
                            yield ValueError(f"{path}:{number}: {error}")
        except UnicodeDecodeError as error:
            encoding = error.encoding.upper()[:6]
            yield ValueError(f"{path}:{number + 1}: {encoding} is expected, as in the first line")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            yield ValueError(
                f"{path}: the compressed data is damaged or cut off after line {number}: {error}"
            )
        except _Unsupported as error:
            yield ValueError(f"{path}: {error}")
        except OSError:
            raise
        except Exception as error:
            # The exception's class cannot be imported, because its module may be missing.
            if type(error).__name__ != "ZstdError":
                raise
            yield ValueError(
                f"{path}: the compressed data is damaged or cut off after line {number}: {error}"
            )


class _Unsupported(Exception):
    """Raised for a file whose content is not JSON Lines in a supported compression."""


def _lines(file: io.BufferedReader) -> Iterator[bytes | str]:
    """Yield the decompressed lines of a file, as bytes if the encoding is UTF-8, otherwise as text."""
    content = _decompressed(file)
    start = content.peek(512)
    head = start[:16]
    kind = next((kind for magic, kind in _OTHER_FORMATS.items() if head.startswith(magic)), "")
    if content is not file and _compression(head):
        kind = "data that was compressed twice"
    if start[_TAR_OFFSET:].startswith(_TAR) and not head.lstrip().startswith(b"{"):
        kind = "a tar archive"
    if kind:
        raise _Unsupported(f"JSON Lines are expected, plain or compressed by gzip or zstd; found {kind}")
    encoding = _encoding(head)
    lines: Any = content
    mark: Any = codecs.BOM_UTF8
    if encoding not in ("utf-8", "utf-8-sig"):
        mark = "\ufeff"
        lines = io.TextIOWrapper(content, encoding, newline="\n")
    while line := lines.readline(MAX_LINE):
        if len(line) == MAX_LINE:
            raise _Unsupported(
                f"one JSON object per line is expected; found a line of more than {MAX_LINE} bytes"
            )
        while line.startswith(mark):
            line = line.removeprefix(mark)
        yield line


def _encoding(head: bytes) -> str:
    """Return a file's encoding, based on its byte order mark or the first character of its JSON."""
    encoding = json.detect_encoding(head)
    has_mark = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE))
    if (
        encoding in ("utf-8", "utf-8-sig")
        or has_mark
        or head.decode(encoding, "ignore").lstrip()[:1] in ("{", "[")
    ):
        return encoding
    return "utf-8"


def _decompressed(file: io.BufferedReader) -> io.BufferedReader:
    """Return a file's decompressed content. Raises _Unsupported if no installed module can decompress it."""
    compression = _compression(file.peek(4))
    if compression == "gzip":
        return io.BufferedReader(gzip.GzipFile(fileobj=file))
    if compression != "zstd":
        return file
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore] # Python 3.14
    except ImportError:
        try:
            import zstandard  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            raise _Unsupported(
                "compressed by zstd, which this Python cannot read: run `pip install zstandard`, "
                "or decompress the file with `zstd -d`"
            ) from None
        return io.BufferedReader(_ZstdFrames(file, zstandard.ZstdDecompressor()))
    return io.BufferedReader(zstd.ZstdFile(file))


def _compression(head: bytes) -> str:
    """Return the compression of data that starts with `head`, or "" for none."""
    if head.startswith(_GZIP):
        return "gzip"
    is_skippable = head[1:4] == _ZSTD_SKIPPABLE and head[0] >> 4 == 5
    return "zstd" if is_skippable or head.startswith(_ZSTD) else ""


class _ZstdFrames(io.RawIOBase):
    """Decompresses zstd frames. Raises EOFError if the last frame is truncated.

    zstandard's own reader does not raise an error in this case.
    """

    def __init__(self, file: io.BufferedReader, decompressor: Any) -> None:
        self._file, self._decompressor = file, decompressor
        self._frame: Any = None
        self._ready, self._rest = b"", b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read bytes into a buffer, and return their number, which is 0 at the end of the file."""
        while not self._ready:
            chunk = self._rest or self._file.read(1 << 16)
            if not chunk:
                if self._frame is not None:
                    raise EOFError("the last frame is not complete")
                return 0
            self._frame = self._frame or self._decompressor.decompressobj()
            self._ready, self._rest = self._frame.decompress(chunk), b""
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
        part, self._ready = self._ready[: len(buffer)], self._ready[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)


def _text(line: bytes | str, field: str, number: int) -> str:
    """Return the text of the document in a line. Raises ValueError if the line is invalid."""
    try:
        # Integers are parsed as floats, because Python limits the number of digits in an integer.
        document = json.loads(line.decode() if isinstance(line, bytes) else line, parse_int=float)
    except (ValueError, RecursionError) as error:
        expected, document, position = _expected(line, error, number), None, _position(line, error)
    else:
        expected, position = _CONVERT if number == 1 and isinstance(document, list) else _OBJECT, ""
    if not isinstance(document, dict):
        raise ValueError(f"{expected}; found {_excerpt(line)}{position}")
    if field not in document:
        keys = f"has {', '.join(map(json.dumps, [*document][:6]))}" if document else "is empty"
        raise ValueError(
            f'the key "{field}" is expected; the object {keys}. Use --text-field to read another key'
        )
    text = document[field]
    if not isinstance(text, str):
        raise ValueError(f'"{field}" must be a string; found {_TYPES.get(type(text), "another value")}')
    try:
        text.encode()
    except UnicodeEncodeError as error:
        surrogate = text[error.start].encode("ascii", "backslashreplace").decode()
        raise ValueError(f'"{field}" has {surrogate}, half of a surrogate pair, which is not text') from None
    return text


_OBJECT = "one JSON object per line is expected"
_CONVERT = (
    f"{_OBJECT}, not an array (convert it with `jq -c .[]`) or an object over several lines (`jq -c .`)"
)


def _expected(line: bytes | str, error: Exception, number: int) -> str:
    """Return the error message for a line that is not valid JSON. Detects other common formats."""
    text = line if isinstance(line, str) else line.decode(errors="replace")
    is_at_end = isinstance(error, json.JSONDecodeError) and error.pos >= len(text.rstrip())
    is_object = text.lstrip().startswith("{")
    if is_object and not text.endswith("\n") and (is_at_end or not text.rstrip().endswith("}")):
        return "the last line is cut off"
    if isinstance(error, UnicodeDecodeError):
        byte = error.object[error.start]
        return (
            f"UTF-8 is expected, but byte 0x{byte:02x} at offset {error.start} is not valid UTF-8; "
            "`iconv -f LATIN1 -t UTF-8` converts Latin-1"
        )
    return _CONVERT if number == 1 and text.strip() in ("[", "{") else _OBJECT


def _position(line: bytes | str, error: Exception) -> str:
    """Return where and why an object in a line is not valid JSON, or "" if the line contains no object."""
    text = line if isinstance(line, str) else line.decode(errors="replace")
    if not isinstance(error, json.JSONDecodeError) or not text.lstrip().startswith("{"):
        return ""
    reasons = {
        "Invalid control character at": "a tab or another control character must be escaped, as in \\t",
        "Extra data": "the line continues after the object",
    }
    return f" (column {error.pos + 1}: {reasons.get(error.msg, error.msg)})"


def _excerpt(line: bytes | str) -> str:
    rest = line.lstrip("\0") if isinstance(line, str) else line.lstrip(b"\0")
    nul_count = len(line) - len(rest)
    if nul_count > 16:
        return f"{nul_count} NUL characters, as after a crash or an incomplete copy"
    if isinstance(line, str):
        return repr(line.strip()[:80])
    try:
        return repr(line.decode().strip()[:80])
    except UnicodeDecodeError:
        return repr(line.strip()[:40])
