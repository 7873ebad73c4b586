"""Read the journals that generated programs write before each of their calls (harness/workers/program.py)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Journal:
    """What one process wrote."""

    role: str
    rank: int | None
    world: int | None
    host: str
    pid: int
    calls: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None

    @property
    def points(self) -> list[tuple[str, int, float]]:
        """Return every number that was handed over with a step: name, step, value."""
        return [
            (name, call["step"], float(number))
            for call in self.calls
            if call["step"] is not None
            for name, kind, number in call["leaves"]
            if number is not None and kind != "none"
        ]

    @property
    def wrong_end(self) -> str:
        """Return how a process ended that did not end by itself with 0, or ""."""
        if self.end is None:
            return "did not end by itself"
        return f"ended with {self.end['code']} ({self.end['how']})" if self.end["code"] else ""


def read(lines: Iterable[str]) -> list[Journal]:
    """Return the journals of processes, whose lines come one process after another.

    A line that was cut off is left out, and so is a line of another kind of file.
    """
    found: list[Journal] = []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if not isinstance(entry, dict):
            continue
        if entry["kind"] == "start":
            rank = entry["rank"] if entry["rank"] is not None else entry["host"].rpartition("-")[2]
            world = int(entry["world_size"]) if entry["world_size"] else None
            number = int(rank) if rank.isdecimal() else None
            found.append(Journal(entry["role"], number, world, entry["host"], entry["pid"]))
        elif found and entry["kind"] == "call":
            found[-1].calls.append(entry)
        elif found and entry["kind"] == "end":
            found[-1].end = entry
    return found
