"""Divide the catalogue of faults into shards of about equal duration, one for each machine.

A fault's duration comes from its row in docs/faults.md, or is DEFAULT_SECONDS if it has no row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import UsageError
from harness.faults.catalogue_run import CONTROL_EVERY
from harness.faults.fault_file import Fault

TABLE = Path(__file__).parents[2] / "docs" / "faults.md"
DEFAULT_SECONDS = 90.0
CONTROL_SECONDS = 35.0
"""The duration of a control in seconds. A control runs after each fault that runs alone, and after every
CONTROL_EVERY other faults."""
PARALLEL = 2
"""The number of faults with the scope `launch` that run at the same time."""
_ROW = re.compile(r"\| \*\*(?P<name>\S+)\*\*:.*\| (?P<seconds>\d+) s \|")
_SHARD = re.compile(r"([1-9]\d*)/([1-9]\d*)")


@dataclass(frozen=True)
class Shard:
    """Shard `number` of `count` shards. Numbers start at 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse a shard such as 2/4. Raises UsageError if the shard is not valid."""
        match = _SHARD.fullmatch(text)
        if match is None or int(match[1]) > int(match[2]):
            raise UsageError(
                f"--shard: expected I/N, with I from 1 to N, found {text!r}",
                hint="for example, --shard 2/4 is the second of four parts",
            )
        return cls(int(match[1]), int(match[2]))

    def of(self, faults: Sequence[Fault], seconds: Mapping[str, float]) -> list[Fault]:
        """Return the faults in this shard, in order."""
        names = {fault.name for fault in divided(faults, self.count, seconds)[self.number - 1]}
        return [fault for fault in faults if fault.name in names]


def recorded_seconds(table: Path = TABLE) -> dict[str, float]:
    """Return the duration of each fault in seconds, from the table in docs/faults.md.

    Returns {} if the file does not exist, for example in an installed package.
    """
    text = table.read_text() if table.is_file() else ""
    return {row["name"]: float(row["seconds"]) for row in _ROW.finditer(text)}


def cost(fault: Fault, seconds: Mapping[str, float]) -> float:
    """Return the number of seconds that a fault adds to its shard, including its share of the controls."""
    own = seconds.get(fault.name, DEFAULT_SECONDS)
    if fault.scope == "launch":
        return (own + CONTROL_SECONDS / CONTROL_EVERY) / PARALLEL
    return own + CONTROL_SECONDS


def divided(faults: Sequence[Fault], count: int, seconds: Mapping[str, float]) -> list[list[Fault]]:
    """Return `count` lists that together contain each injectable fault once.

    The longest faults are added first, each to the list that has the shortest total duration at that time.
    """
    shards: list[list[Fault]] = [[] for _ in range(count)]
    load = [0.0] * count
    injectable = [fault for fault in faults if fault.cannot is None]
    for fault in sorted(injectable, key=lambda fault: (-cost(fault, seconds), fault.name)):
        at = load.index(min(load))
        shards[at].append(fault)
        load[at] += cost(fault, seconds)
    return shards
