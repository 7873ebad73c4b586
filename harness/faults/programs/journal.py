"""Read the journals of generated programs (harness/workers/program.py).

A program writes a journal entry before each call to the client.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Journal:
    """The journal of one process of a program."""

    role: str
    rank: int | None
    world: int | None
    host: str
    pid: int
    calls: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None

    @property
    def points(self) -> list[tuple[str, int, float]]:
        """Return the name, step and value of every number that was logged with a step."""
        return [
            (name, call["step"], float(number))
            for call in self.calls
            if call["step"] is not None
            for name, kind, number in call["leaves"]
            if number is not None and kind != "none"
        ]

    @property
    def wrong_end(self) -> str:
        """Return how the process ended, or "" if it exited on its own with exit code 0."""
        if self.end is None:
            return "did not end by itself"
        return f"ended with {self.end['code']} ({self.end['how']})" if self.end["code"] else ""


def read(lines: Iterable[str]) -> list[Journal]:
    """Return the journals of several processes. `lines` contains the lines of all journals, process by
    process.

    Truncated lines, and lines that do not belong to a journal, are skipped.
    """
    journals: list[Journal] = []
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
            journals.append(Journal(entry["role"], number, world, entry["host"], entry["pid"]))
        elif journals and entry["kind"] == "call":
            journals[-1].calls.append(entry)
        elif journals and entry["kind"] == "end":
            journals[-1].end = entry
    return journals
