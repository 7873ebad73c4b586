"""From JSONL to sequences of tokens.

A file has one document a line: `{"text": "…"}`. Documents become one stream, an end mark after each. The
stream is cut into sequences that share nothing: `context` tokens, and the token that follows each of them.
The last one may be shorter. So each token of the stream but the first is predicted exactly once.
"""

from __future__ import annotations

import codecs
import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class Tokenizer(Protocol):
    """Text to token numbers, from 0 to `size` − 1."""

    size: int
    end: int
    """The token after each document."""

    def encode(self, text: str) -> list[int]: ...


class Bytes:
    """Each byte of UTF-8 is a token."""

    size, end = 257, 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class HuggingFaceTokenizer:
    """A tokenizer of transformers, from a folder or by its name from the hub."""

    def __init__(self, folder: str, *, local_only: bool) -> None:
        """Load it. Raises OSError where there is none, and ValueError where it has no end mark."""
        from transformers import AutoTokenizer

        self._inner: Any = AutoTokenizer.from_pretrained(folder, local_files_only=local_only)
        if self._inner.eos_token_id is None:
            raise ValueError(f"the tokenizer of {folder} has no end-of-text token")
        self.size, self.end = len(self._inner), int(self._inner.eos_token_id)

    def encode(self, text: str) -> list[int]:
        found: list[int] = self._inner.encode(text, add_special_tokens=False)
        return found

    def save(self, folder: Path) -> None:
        """Write it as transformers reads it."""
        self._inner.save_pretrained(folder)


@dataclass(frozen=True)
class Stream:
    """The tokens of a file, cut into sequences."""

    tokens: array[int]
    context: int

    @property
    def whole(self) -> int:
        """How many sequences have `context` predictions."""
        return (len(self.tokens) - 1) // self.context

    @property
    def sequences(self) -> int:
        """How many there are, with the shorter one at the end."""
        return -(-(len(self.tokens) - 1) // self.context)

    def sequence(self, index: int) -> list[int]:
        """Return `context` + 1 tokens, or fewer at the end: inputs, and what follows each."""
        first = index * self.context
        return self.tokens[first : first + self.context + 1].tolist()


def read(
    path: Path, tokenizer: Tokenizer, context: int, field: str = "text", *, whole: bool = False
) -> Stream:
    """Read a JSONL file, which has a sequence of `context` predictions at least where it must be `whole`.

    Raises ValueError that names the file or the line, and OSError.
    """
    tokens = array("q")
    for text in documents(path, field):
        tokens.extend([*tokenizer.encode(text), tokenizer.end])
    _enough(path, len(tokens), context if whole else None)
    return Stream(tokens, context)


def examine(path: Path, field: str, context: int | None) -> None:
    """Raise what `read` raises, with bytes for tokens, and keep no text.

    `context` is that of a file that must be whole. It is None for others, and where tokens are no bytes.
    """
    _enough(path, sum(len(text.encode()) + 1 for text in documents(path, field)), context)


def _enough(path: Path, tokens: int, context: int | None) -> None:
    least = 2 if context is None else context + 1
    if tokens >= least:
        return
    reason = "" if context is None else f" (--context {context}, and the one that follows)"
    empty = "is empty" if not path.stat().st_size else "has no document"
    found = f"has {tokens}" if tokens else empty
    raise ValueError(f"{path}: at least {least} tokens are expected{reason}; the file {found}")


def documents(path: Path, field: str) -> Iterator[str]:
    """Yield the text of each line. Raises ValueError that names the line."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                if line.strip():
                    yield _text(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line, field)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {error}") from None


def _text(line: bytes, field: str) -> str:
    """Return the text of a line. Raises ValueError."""
    try:
        found = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        expected, found = _expected(line, error), None
    else:
        expected = _OBJECT
    if not isinstance(found, dict):
        raise ValueError(f"{expected}; found {_shown(line)}")
    if field not in found:
        has = f"has {', '.join(map(json.dumps, [*found][:6]))}" if found else "is empty"
        raise ValueError(f'"{field}" is expected; the object {has}. --text-field names another')
    text = found[field]
    if not isinstance(text, str):
        raise ValueError(f'"{field}" is a string; found {type(text).__name__}')
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start].encode("ascii", "backslashreplace").decode()
        raise ValueError(f'"{field}" has {half}, half of a surrogate pair, which is no text') from None
    return text


_OBJECT = "one JSON object a line is expected"


def _expected(line: bytes, error: Exception) -> str:
    """Return what was expected of a line that cannot be read. A last line without its end may be cut off."""
    if not line.endswith(b"\n") and line.lstrip().startswith(b"{") and "Extra data" not in str(error):
        return "the last line is cut off"
    return "UTF-8 is expected" if isinstance(error, UnicodeDecodeError) else _OBJECT


def _shown(line: bytes) -> str:
    try:
        return repr(line.decode().strip()[:80])
    except UnicodeDecodeError:
        return repr(line.strip()[:40])
