"""Convert JSONL files to sequences of tokens.

Each line of a file has one document: `{"text": "…"}`. The documents form one stream, with an end token after
each. The stream is cut into disjoint sequences of `context` tokens; the target of each token is the next
token of the stream. The last sequence can be shorter. Each token except the first is thus predicted
exactly once.
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
    """Converts text to token ids from 0 to `size` − 1."""

    size: int
    end: int
    """The token that is added after each document."""

    def encode(self, text: str) -> list[int]: ...


class Bytes:
    """A tokenizer whose tokens are the bytes of UTF-8."""

    size, end = 257, 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class HuggingFaceTokenizer:
    """A tokenizer from transformers, loaded from a folder or by name from the hub."""

    def __init__(self, folder: str, *, local_only: bool) -> None:
        """Load the tokenizer. Raises OSError if it is missing, ValueError if it has no end-of-text token."""
        from transformers import AutoTokenizer

        self._inner: Any = AutoTokenizer.from_pretrained(folder, local_files_only=local_only)
        if self._inner.eos_token_id is None:
            raise ValueError(f"the tokenizer of {folder} has no end-of-text token")
        self.size, self.end = len(self._inner), int(self._inner.eos_token_id)

    def encode(self, text: str) -> list[int]:
        tokens: list[int] = self._inner.encode(text, add_special_tokens=False)
        return tokens

    def save(self, folder: Path) -> None:
        """Save the tokenizer in the format of transformers."""
        self._inner.save_pretrained(folder)


@dataclass(frozen=True)
class Stream:
    """The tokens of a file, cut into sequences."""

    tokens: array[int]
    context: int

    @property
    def whole(self) -> int:
        """Return the number of full-length sequences, each with `context` predictions."""
        return (len(self.tokens) - 1) // self.context

    @property
    def sequences(self) -> int:
        """Return the number of sequences, including a shorter one at the end."""
        return -(-(len(self.tokens) - 1) // self.context)

    def sequence(self, index: int) -> list[int]:
        """Return the tokens of a sequence, inputs and targets: `context` + 1, or fewer at the end."""
        first = index * self.context
        return self.tokens[first : first + self.context + 1].tolist()


def read(
    path: Path, tokenizer: Tokenizer, context: int, field: str = "text", *, whole: bool = False
) -> Stream:
    """Return the tokens of a JSONL file. If `whole` is true, it must have at least one full-length sequence.

    Raises OSError, or ValueError with the name of the file and, for an invalid line, its number.
    """
    tokens = array("q")
    for text in documents(path, field):
        tokens.extend([*tokenizer.encode(text), tokenizer.end])
    _enough(path, len(tokens), context if whole else None)
    return Stream(tokens, context)


def examine(path: Path, field: str, context: int | None) -> None:
    """Raise the errors that `read` raises with the byte tokenizer, without keeping the text in memory.

    If `context` is not None, the file must have at least one sequence of this length. Pass None if the
    training uses another tokenizer, or if the file needs no full-length sequence.
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
    """Yield the text of each document. Raises ValueError with the number of an invalid line."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                if line.strip():
                    yield _text(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line, field)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {error}") from None


def _text(line: bytes, field: str) -> str:
    """Return the text of the document in a line. Raises ValueError if the line is invalid."""
    try:
        document = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        expected, document = _expected(line, error), None
    else:
        expected = _OBJECT
    if not isinstance(document, dict):
        raise ValueError(f"{expected}; found {_shown(line)}")
    if field not in document:
        has = f"has {', '.join(map(json.dumps, [*document][:6]))}" if document else "is empty"
        raise ValueError(f'"{field}" is expected; the object {has}. --text-field names another')
    text = document[field]
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
    """Return the error message for a line that is not valid JSON. Detect a truncated last line."""
    if not line.endswith(b"\n") and line.lstrip().startswith(b"{") and "Extra data" not in str(error):
        return "the last line is cut off"
    return "UTF-8 is expected" if isinstance(error, UnicodeDecodeError) else _OBJECT


def _shown(line: bytes) -> str:
    try:
        return repr(line.decode().strip()[:80])
    except UnicodeDecodeError:
        return repr(line.strip()[:40])
