"""Put values of wrong types into recorded objects, as a damaged or foreign bundle may have them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 7, 2**63, 10**400, 1.5, "", "x", "-1", "1e400", "²", "x" * 2000),
    *("2026-11-21T05:00:00Z", "0000-00-00T99:99:99Z", "9" * 30),
    *([], ["x"], [[]], [{}], [None], {}, {"x": "y"}, {"name": ["x"]}),
)
LARGE = {"env", "volumeMounts", "managedFields", "volumes"}
"""Most places of a pod are in these, and few of them are judged."""

Path = tuple[str | int, ...]


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the place of every value inside a document."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield (*path, key)
        yield from paths(item, (*path, key))


def put(document: Any, path: Path, value: Any) -> None:
    """Put a value at a place. A document that has no such place stays as it is."""
    for key in path[:-1]:
        try:
            document = document[key]
        except (LookupError, TypeError):
            return
    if isinstance(document, dict) or (isinstance(document, list) and path[-1] < len(document)):  # type: ignore[operator]
        document[path[-1]] = copy.deepcopy(value)


def spoil(objects: Sequence[dict[str, Any]], random: Random) -> tuple[Path, Any]:
    """Put one value at one place of every object of a kind, in place. Return both.

    Every name of a field is as likely as any other.
    """
    named: dict[Path, list[Path]] = {}
    for path in paths(random.choice(objects)):
        if not LARGE & set(path[:-1]) or random.random() < 0.05:
            named.setdefault(tuple(key for key in path if isinstance(key, str)), []).append(path)
    path, value = random.choice(named[random.choice(sorted(named))]), random.choice(VALUES)
    for document in objects:
        put(document, path, value)
    return path, value
