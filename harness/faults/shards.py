"""Divide the catalogue of faults into shards that take about equally long, for machines side by side.

The seconds of a fault are those of its row in docs/faults.md. A fault without a row takes DEFAULT_SECONDS.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import UsageError
from harness.faults.fault import Fault
from harness.faults.matrix import CONTROL_EVERY

TABLE = Path(__file__).parents[2] / "docs" / "faults.md"
DEFAULT_SECONDS = 90.0
CONTROL_SECONDS = 35.0
"""Of a healthy launch, which follows every fault that runs alone and every few of the others."""
PARALLEL = 2
"""How many faults that disturb only their own launch run at the same time."""
_ROW = re.compile(r"\| \*\*(?P<name>\S+)\*\*:.*\| (?P<seconds>\d+) s \|")
_SHARD = re.compile(r"([1-9]\d*)/([1-9]\d*)")


@dataclass(frozen=True)
class Shard:
    """Part `number` of `count`, from 1 on."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the shard of a text such as 2/4. Raises UsageError."""
        found = _SHARD.fullmatch(text)
        if found is None or int(found[1]) > int(found[2]):
            raise UsageError(
                f"--shard: I/N with I from 1 to N is expected, found {text!r}",
                hint="--shard 2/4 is the second of 4",
            )
        return cls(int(found[1]), int(found[2]))

    def of(self, faults: Sequence[Fault], seconds: Mapping[str, float]) -> list[Fault]:
        """Return the faults of this shard in their order."""
        names = {fault.name for fault in divided(faults, self.count, seconds)[self.number - 1]}
        return [fault for fault in faults if fault.name in names]


def recorded_seconds(table: Path = TABLE) -> dict[str, float]:
    """Map each fault of a table to the seconds of its whole run. An installed package has no table."""
    text = table.read_text() if table.is_file() else ""
    return {row["name"]: float(row["seconds"]) for row in _ROW.finditer(text)}


def cost(fault: Fault, seconds: Mapping[str, float]) -> float:
    """Return the seconds that a fault adds to its shard, with its part of the healthy launches."""
    own = seconds.get(fault.name, DEFAULT_SECONDS)
    if fault.scope == "launch":
        return (own + CONTROL_SECONDS / CONTROL_EVERY) / PARALLEL
    return own + CONTROL_SECONDS


def divided(faults: Sequence[Fault], count: int, seconds: Mapping[str, float]) -> list[list[Fault]]:
    """Return `count` lists, with every fault that can be injected in exactly one of them.

    The longest fault comes first. Each goes into the list that is shortest by then.
    """
    shards: list[list[Fault]] = [[] for _ in range(count)]
    load = [0.0] * count
    able = [fault for fault in faults if fault.cannot is None]
    for fault in sorted(able, key=lambda fault: (-cost(fault, seconds), fault.name)):
        at = load.index(min(load))
        shards[at].append(fault)
        load[at] += cost(fault, seconds)
    return shards
