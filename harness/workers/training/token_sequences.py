"""Convert documents to token sequences.

The documents in a split (documents.py) form one stream, with an end token after each document. The stream is
cut into disjoint sequences of `context` tokens. Each token's target is the next token in the stream. The last
sequence may be shorter. Each token except the first is thus predicted exactly once.
"""

from __future__ import annotations

import os
import zlib
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from .documents import SPLITS, checked, documents

MEMORY_SHARE = 0.5
"""The maximum fraction of the memory limit that the tokens may use. The model and PyTorch need the rest."""
PROBLEMS = 20
"""Maximum number of problems that `examine` returns."""


class Tokenizer(Protocol):
    """Converts text to token ids from 0 to `size` − 1."""

    size: int
    end: int
    """The id of the token that is added after each document."""

    def encode(self, text: str) -> list[int]: ...


class Bytes:
    """A tokenizer whose tokens are the bytes of the UTF-8 encoding."""

    size, end = 257, 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class HuggingFaceTokenizer:
    """A tokenizer from transformers, loaded from a folder or by name from the hub."""

    def __init__(self, folder: str, *, local_only: bool) -> None:
        """Load the tokenizer. Raises OSError if there is none, and ValueError if it has no end token."""
        from transformers import AutoTokenizer

        self._inner: Any = AutoTokenizer.from_pretrained(folder, local_files_only=local_only)
        if self._inner.eos_token_id is None:
            raise ValueError(f"the tokenizer in {folder} has no end-of-text token")
        self.size, self.end = len(self._inner), int(self._inner.eos_token_id)

    def encode(self, text: str) -> list[int]:
        tokens: list[int] = self._inner.encode(text, add_special_tokens=False)
        return tokens

    def save(self, folder: Path) -> None:
        """Save the tokenizer in the transformers format."""
        self._inner.save_pretrained(folder)


@dataclass(frozen=True)
class Stream:
    """The tokens of a split, cut into sequences."""

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
        """Return a sequence's `context` + 1 tokens (inputs and targets). The last sequence can have fewer."""
        first = index * self.context
        return self.tokens[first : first + self.context + 1].tolist()


def read(
    paths: Sequence[Path],
    tokenizer: Tokenizer,
    context: int,
    field: str = "text",
    *,
    whole: bool = False,
    memory: int | None = None,
) -> Stream:
    """Return the tokens in a split's files.

    If `whole` is true, at least one full-length sequence is required. `memory` is the maximum total size of
    the tokens in bytes. Raises OSError, or ValueError with the file name and, for an invalid line, the line
    number.
    """
    tokens = array(typecode(tokenizer.size))
    for text in documents(paths, field):
        tokens.extend([*tokenizer.encode(text), tokenizer.end])
        if memory is not None and len(tokens) * tokens.itemsize > memory:
            raise ValueError(too_large(paths[0], len(tokens), memory, "or more "))
    _require_tokens(paths, len(tokens), context if whole else None)
    return Stream(tokens, context)


def typecode(size: int) -> str:
    """Return the type code of the smallest array type for a tokenizer with `size` tokens."""
    return "H" if size <= 1 << 16 else "I"


def too_large(path: Path, tokens: int, memory: int, remark: str = "") -> str:
    """Return the error message for texts whose tokens do not fit into a rank's memory."""
    return (
        f"{path}: {tokens} tokens {remark}are too many for this pod: each rank has {memory / 2**30:.1f} GiB "
        "for them. Use more memory (--memory), fewer ranks in a pod or fewer texts"
    )


def memory_of_rank() -> int | None:
    """Return the number of bytes of memory that a rank can use for tokens."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            limits.append(int(Path(path).read_text()))
    return int(min(limits) * MEMORY_SHARE) // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def fingerprint(stream: Stream) -> int:
    """Return a checksum of the tokens, with which a resumed run detects that the texts have changed."""
    return zlib.crc32(stream.tokens)


def other_texts(splits: Sequence[Sequence[tuple[int, int]]], folder: Path) -> str:
    """Return the error message if a rank has read different texts from those of rank 0, otherwise "".

    `splits` contains, for each rank and split (documents.SPLITS), the number of tokens and the fingerprint.
    Each rank selects its sequences by their indices. A rank with different texts would train on the wrong
    sequences, or end an epoch at a different step, at which the other ranks would wait for it.
    """
    for rank, own in enumerate(splits):
        for split, first, other in zip(SPLITS, splits[0], own, strict=True):
            if first != other:
                found = f"{other[0]} tokens" if first[0] != other[0] else f"{other[0]} different tokens"
                return (
                    f"{folder}: every rank needs the same {split} texts; rank 0 has {first[0]} tokens, rank "
                    f"{rank} has {found}. Use one volume for all nodes, or copy the texts to each node again"
                )
    return ""


class Examined(NamedTuple):
    """The result of checking a split's files."""

    tokens: int
    """The number of tokens in the files, counted with the byte tokenizer."""
    problems: list[str]
    """The first problems. Each one names the file and, for an invalid line, the line number."""
    others: int
    """The number of further problems, which are not listed."""


def examine(paths: Sequence[Path], field: str, context: int | None) -> Examined:
    """Perform the checks of `read` on a split's files with the byte tokenizer, but keep no texts in memory.

    If `context` is not None, the files must contain at least one sequence of this length. Pass None if the
    job uses a different tokenizer, or if no full-length sequence is needed. Raises OSError.
    """
    tokens, count = 0, 0
    problems: list[str] = []
    for text in checked(paths, field):
        if isinstance(text, ValueError):
            count += 1
            if len(problems) < PROBLEMS:
                problems.append(f"{text}")
        else:
            tokens += len(text.encode()) + 1
    if not count:
        try:
            _require_tokens(paths, tokens, context)
        except ValueError as error:
            return Examined(tokens, [f"{error}"], 0)
    return Examined(tokens, problems, count - len(problems))


def _require_tokens(paths: Sequence[Path], tokens: int, context: int | None) -> None:
    minimum = 2 if context is None else context + 1
    if tokens >= minimum:
        return
    path = paths[0] if len(paths) == 1 else paths[0].parent
    reason = "" if context is None else f" (--context {context}, plus the next token)"
    empty = "has no document" if any(each.stat().st_size for each in paths) else "is empty"
    content = f"has {tokens}" if tokens else empty
    raise ValueError(f"{path}: at least {minimum} tokens are expected{reason}; the data {content}")
