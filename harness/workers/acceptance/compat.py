"""Provide features that are missing in the oldest supported versions, Python 3.9 and PyTorch 2.0."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")
_KEY = re.compile(r"([A-Za-z0-9_-]+)\s*=\s*")


class LackingError(Exception):
    """Raised if this PyTorch is too old for a test. The message names the feature and the version."""


def lacks(feature: str, version: str) -> LackingError:
    """Return a LackingError for `feature`. `version` is the first PyTorch version that has it."""
    import torch

    return LackingError(
        f"PyTorch {torch.__version__} has no {feature}, which requires PyTorch {version} or later"
    )


def store_without_libuv() -> dict[str, bool]:
    """Return the TCPStore option that disables libuv, or {} if this PyTorch version does not have it.

    Stores never use libuv before PyTorch 2.2.
    """
    from torch.distributed import TCPStore

    return {"use_libuv": False} if "use_libuv" in (TCPStore.__init__.__doc__ or "") else {}


def paired(one: Sequence[A], other: Sequence[B]) -> Iterator[tuple[A, B]]:
    """Return the pairs of corresponding items in two sequences. Raises ValueError if their lengths differ."""
    if len(one) != len(other):
        raise ValueError(f"sequences of {len(one)} and {len(other)} items cannot be paired")
    return zip(one, other)


def neighbours(all_: Sequence[A]) -> Iterable[tuple[A, A]]:
    """Return the pairs of adjacent items in a sequence."""
    return zip(all_, all_[1:])


def toml(text: str) -> dict[str, Any]:
    """Parse a TOML document.

    Before Python 3.11, only `[[name]]` tables whose values are numbers or strings work. Raises ValueError if
    the text is invalid or not supported.
    """
    try:
        import tomllib
    except ModuleNotFoundError:
        return _tables(text)
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def _tables(text: str) -> dict[str, Any]:
    """Parse `[[name]]` tables whose values are also valid JSON. Raises ValueError for any other document."""
    tables: dict[str, Any] = {}
    table: dict[str, Any] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        if head := re.fullmatch(r"\[\[([A-Za-z0-9_-]+)\]\]\s*(#.*)?", words):
            table = {}
            tables.setdefault(head[1], []).append(table)
            continue
        key = _KEY.match(words)
        if key is None or table is None or key[1] in table:
            raise ValueError(f"line {number} cannot be parsed with Python before 3.11: {words[:60]!r}")
        try:
            value, end = json.JSONDecoder().raw_decode(words, key.end())
        except ValueError:
            raise ValueError(
                f"line {number} cannot be parsed with Python before 3.11: {words[:60]!r}"
            ) from None
        rest = words[end:].strip()
        if isinstance(value, (dict, list)) or value is None or (rest and not rest.startswith("#")):
            raise ValueError(f"line {number} cannot be parsed with Python before 3.11: {words[:60]!r}")
        table[key[1]] = value
    return tables
