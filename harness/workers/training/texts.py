"""From JSONL to sequences of tokens.

A file has one document a line: `{"text": "…"}`. Documents become one stream, an end mark after each. The
stream is cut into sequences that share nothing: `context` tokens, and the token that follows each of them.
The last one may be shorter. So each token of the stream but the first is predicted exactly once.
"""

from __future__ import annotations

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


def read(path: Path, tokenizer: Tokenizer, context: int, field: str = "text") -> Stream:
    """Read a JSONL file. Raises ValueError that names the line, and OSError."""
    tokens = array("q")
    for text in documents(path, field):
        tokens.extend([*tokenizer.encode(text), tokenizer.end])
    if len(tokens) < 2:
        raise ValueError(f"{path}: at least two tokens are expected; seen {len(tokens)}")
    return Stream(tokens, context)


def documents(path: Path, field: str) -> Iterator[str]:
    """Yield the text of each line. Raises ValueError that names the line."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)[field]
            except (ValueError, KeyError, TypeError) as error:
                expected = f'an object with "{field}" is expected'
                raise ValueError(f"{path}:{number}: {expected}; seen {line.strip()[:80]!r}") from error
            if not isinstance(text, str):
                raise ValueError(f'{path}:{number}: "{field}" is text; seen {type(text).__name__}')
            yield text
