"""Show metrics whose names differ only by a rank in one chart, and flatten nested settings into rows."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from harness.core.secret_rules import denotes_value, is_secret_name, redact

RANK = re.compile(r"(?i)(?:(?<=^)|(?<=[/_.\-]))(node|rank|worker|gpu|replica|host)[_.\-]?(\d+)(?=$|[/_.\-])")
LAST = re.compile(r"\.(\d+)$")
HIDDEN = "hidden"
MAX_ROWS = 2000


@dataclass(frozen=True)
class Series:
    """One curve in a chart, which shows one metric of one run."""

    run: int
    name: str
    label: str
    colour: int = 0
    """The index of the curve's colour. If the chart shows several runs, each run has its own colour. If it
    shows one run, each rank has its own colour."""


@dataclass(frozen=True)
class Chart:
    """A chart with one metric, or with the metrics of several ranks, whose names differ only by the rank."""

    title: str
    series: tuple[Series, ...]

    @property
    def system(self) -> bool:
        return self.title.startswith("sys/")


def split(name: str) -> tuple[str, str, int]:
    """Return (chart title, label, rank) for a metric: "loss/node3" → ("loss/node*", "node 3", 3)."""
    match = RANK.search(name)
    if match:
        return (
            f"{name[: match.start()]}{match[1]}*{name[match.end() :]}",
            f"{match[1]} {match[2]}",
            int(match[2]),
        )
    match = LAST.search(name)
    if match:
        return f"{name[: match.start()]}.*", match[1], int(match[1])
    return name, name, 0


def charts(metrics: Iterable[tuple[int, str, str]]) -> list[Chart]:
    """Group metrics, given as (run, name of the run or "", metric), into charts. Sort the charts by title.

    If two curves of a chart have the same label, as with "loss/node1" and "loss/node_1", the labels also
    contain the names of the metrics.
    """
    by_title: dict[str, list[tuple[int, Series]]] = {}
    colours: dict[int, int] = {}
    for run, run_name, name in metrics:
        colours.setdefault(run, len(colours))
        title, label, rank = split(name)
        if run_name:
            label = run_name if label == name else f"{run_name} · {label}"
        by_title.setdefault(title, []).append((rank, Series(run, name, label)))
    labels = Counter((title, one.label) for title, series in by_title.items() for _, one in series)
    result = []
    for title, series in sorted(by_title.items()):
        ordered = [one for _, one in sorted(series, key=lambda pair: (colours[pair[1].run], pair[0]))]
        several = len(colours) > 1
        coloured = [
            replace(
                one,
                colour=colours[one.run] if several else at,
                label=one.label if labels[title, one.label] == 1 else f"{one.label} ({one.name})",
            )
            for at, one in enumerate(ordered)
        ]
        result.append(Chart(title, tuple(coloured)))
    return result


def flat(value: Any) -> list[tuple[str, str]]:
    """Return (path, text) for each leaf of a nested value.

    A value is hidden if its path suggests a secret. Secrets in other values are masked.
    """
    rows: list[tuple[str, str]] = []
    for path, leaf in _leaves(value, ""):
        if len(rows) == MAX_ROWS:
            rows.append(("…", f"more than {MAX_ROWS} rows"))
            break
        text = leaf if isinstance(leaf, str) else json.dumps(leaf, ensure_ascii=False)
        if leaf:
            text = HIDDEN if _is_secret(path) else str(redact(path, text))
        rows.append((str(redact("", path)), text))
    return rows


def _is_secret(path: str) -> bool:
    """Return whether a dotted path suggests a secret.

    This is the case if the last key of the path is a secret's name, or if an earlier key denotes a secret
    value.
    """
    *parents, key = re.sub(r"\[\d+\]", "", path).split(".")
    return is_secret_name(key) or any(map(denotes_value, parents))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) for each leaf of a nested value.

    This does not use recursion, because a config can be nested more deeply than Python's recursion limit.
    """
    pending: list[tuple[str, Any]] = [(path, value)]
    while pending:
        at, one = pending.pop()
        if isinstance(one, dict) and one:
            name = one.get("name")
            # This matches objects such as {"name": "HF_TOKEN", "value": …}.
            is_secret = isinstance(name, str) and _is_secret(name)
            pending += [
                (f"{at}.{key}" if at else str(key), HIDDEN if is_secret and key == "value" else one[key])
                for key in reversed(one)
            ]
        elif isinstance(one, list) and any(isinstance(item, dict | list) for item in one):
            pending += [(f"{at}[{place}]", one[place]) for place in reversed(range(len(one)))]
        elif one is not None or at:
            yield at or "(value)", one
