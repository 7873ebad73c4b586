"""Determine what the Pluto client reads from the arguments of a call to `log` (pluto-ml 0.0.29, op.py).

This module uses only the standard library, and supports Python 3.9 and later.
"""

from __future__ import annotations

import time
from typing import Any

from ..ground_truth import client_rules


class ClientData(dict):  # type: ignore[type-arg]
    """The data that the client receives: the caller's entries, in which numbers replace the tensors."""

    def __init__(self, entries: list[tuple[Any, Any]]) -> None:
        super().__init__(entries)
        self._entries = entries

    def items(self) -> Any:
        return self._entries  # Unlike a dict, this list of entries can contain duplicate keys.


def all_exact(data: dict[Any, Any]) -> bool:
    """Return whether `data` has only string keys, and only numbers that a double represents exactly."""
    for name, value in data.items():
        kind = type(value)
        if type(name) is not str or not (
            kind is float or (kind is int and -client_rules.EXACT <= value <= client_rules.EXACT)
        ):
            return False
    return True


def entries_of(data: Any) -> list[tuple[Any, Any]] | None:
    """Return the entries that the client will iterate over, or None if it rejects the data.

    Calls the data's `items` method only once.
    """
    items = getattr(data, "items", None)
    return [(name, value) for name, value in items()] if callable(items) else None


def number_of(read: dict[int, Any], value: Any) -> Any:
    """Return the number that the client reads from a value, or None. `read` maps object ids to numbers."""
    if isinstance(value, (int, float)):
        return value
    if id(value) in read:
        return read[id(value)]
    try:
        number = value.item()
    except Exception:  # The value is not a tensor, or has several numbers. The client drops it too.
        return None
    if isinstance(number, (int, float)):
        if not isinstance(number, bool):  # The client queues a bool in a tensor, but not a plain bool.
            read[id(value)] = number
        return number
    return None


def no_number(_: Any) -> None:
    return None


def with_numbers(value: Any, read: dict[int, Any]) -> Any:
    """Return a value with each tensor replaced by the number in `read`."""
    if isinstance(value, list):
        return [read.get(id(item), item) for item in value]
    return read.get(id(value), value)


def milliseconds(timestamp: Any) -> int:
    """Return the caller's timestamp in ms if the client would accept it, otherwise the current time."""
    is_valid = isinstance(timestamp, (int, float)) and not isinstance(timestamp, bool)
    seconds = timestamp if is_valid and 0 < timestamp < float("inf") else time.time()
    return int(seconds * 1000)
