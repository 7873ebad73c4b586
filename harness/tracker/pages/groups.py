"""Metrics that differ in a rank alone are one chart. Nested settings are flat rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

RANK = re.compile(r"(?i)(?:(?<=^)|(?<=[/_.\-]))(node|rank|worker|gpu|replica|host)[_.\-]?(\d+)(?=$|[/_.\-])")
LAST = re.compile(r"\.(\d+)$")
SECRET = re.compile(r"(?i)(auth|token|secret|password|passwd|api_?key|credential)")
ROWS_MOST = 2000


@dataclass(frozen=True)
class Series:
    run: int
    name: str
    label: str
    colour: int = 0
    """Of several runs each has its own colour, of one run each rank."""


@dataclass(frozen=True)
class Chart:
    title: str
    series: tuple[Series, ...]

    @property
    def system(self) -> bool:
        return self.title.startswith("sys/")


def split(name: str) -> tuple[str, str, int]:
    """Return (title, label, rank) of a metric: "loss/node3" → ("loss/node*", "node 3", 3)."""
    found = RANK.search(name)
    if found:
        return (
            f"{name[: found.start()]}{found[1]}*{name[found.end() :]}",
            f"{found[1]} {found[2]}",
            int(found[2]),
        )
    found = LAST.search(name)
    if found:
        return f"{name[: found.start()]}.*", found[1], int(found[1])
    return name, name, 0


def charts(metrics: Iterable[tuple[int, str, str]]) -> list[Chart]:
    """Group (run, name of the run or "", metric) into charts, in order of their titles."""
    made: dict[str, list[tuple[int, Series]]] = {}
    colours: dict[int, int] = {}
    for run, shown, name in metrics:
        colours.setdefault(run, len(colours))
        title, label, rank = split(name)
        if shown:
            label = shown if label == name else f"{shown} · {label}"
        made.setdefault(title, []).append((rank, Series(run, name, label)))
    found = []
    for title, series in sorted(made.items()):
        ordered = [one for _, one in sorted(series, key=lambda pair: (colours[pair[1].run], pair[0]))]
        several = len(colours) > 1
        coloured = [replace(s, colour=colours[s.run] if several else at) for at, s in enumerate(ordered)]
        found.append(Chart(title, tuple(coloured)))
    return found


def flat(value: Any) -> list[tuple[str, str]]:
    """Return (path, text) of each leaf. What looks like a secret is not shown."""
    found: list[tuple[str, str]] = []
    for path, leaf in _leaves(value, ""):
        if len(found) == ROWS_MOST:
            found.append(("…", f"more than {ROWS_MOST} rows"))
            break
        text = leaf if isinstance(leaf, str) else json.dumps(leaf, ensure_ascii=False)
        found.append((path, "hidden" if SECRET.search(path) and leaf else text))
    return found


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield leaves without recursion: a config may be nested as deep as JSON allows."""
    left: list[tuple[str, Any]] = [(path, value)]
    while left:
        at, one = left.pop()
        if isinstance(one, dict) and one:
            left += [(f"{at}.{key}" if at else str(key), one[key]) for key in reversed(one)]
        elif one is not None or at:
            yield at or "(value)", one
