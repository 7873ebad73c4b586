"""The ledger of a soak, with one JSON line per launch, and statistics for all launches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from harness.evidence.io import runs_folder
from harness.evidence.io.runs_folder import Keep
from harness.evidence.schema.bundle import Retry


class Entry(BaseModel):
    """The result of a launch."""

    number: int
    bundle: str | None
    """The path of the launch's bundle, or None if the harness did not write a bundle."""
    kept: bool = True
    """False if the bundle was removed because of `--keep-runs`."""
    verdict: str
    """PASS, FAIL, UNKNOWN, or "none" if nothing was judged."""
    cause: str | None = None
    explanation: str = ""
    exit_code: int | None = None
    started_at: str
    seconds: float
    """The duration of the harness process in seconds."""
    stages: dict[str, float] = {}
    retries: list[Retry] = []

    @property
    def passed(self) -> bool:
        return self.verdict == "PASS" and self.exit_code == 0


class Ledger:
    """The ledger of a soak. Its file is written after each launch. The class is not thread-safe."""

    def __init__(self, path: Path, keep: Keep) -> None:
        self.path = path
        self.entries: list[Entry] = []
        self._keep = keep
        self._passed: list[Path] = []

    def add(self, entry: Entry) -> None:
        """Add an entry, remove bundles that should not be kept, and write the file."""
        if entry.passed and entry.bundle is not None:
            self._passed.append(Path(entry.bundle))
            for old in self._keep.surplus(self._passed):
                runs_folder.remove(old)
                self._passed.remove(old)
        self.entries.append(entry)
        self._mark()
        self._write()

    def _mark(self) -> None:
        for number, entry in enumerate(self.entries):
            exists = entry.bundle is not None and Path(entry.bundle).is_dir()
            if entry.kept and not exists:
                self.entries[number] = entry.model_copy(update={"kept": False})

    def _write(self) -> None:
        partial = self.path.with_suffix(".partial")
        partial.write_text("".join(entry.model_dump_json() + "\n" for entry in self.entries))
        partial.replace(self.path)


class Numbers(BaseModel):
    """Statistics for all launches. Durations are in seconds."""

    launches: int
    passed: int
    verdicts: dict[str, int]
    """Maps a verdict such as "FAIL rank.crashed" to the number of launches with this verdict."""
    retries: int
    seconds: dict[str, dict[str, float]]
    """Maps "whole" (the process), and the stages "launch" and "observe", to the percentiles p50, p90 and p99
    and the maximum of their durations."""


def numbers(entries: Sequence[Entry]) -> Numbers:
    times = {"whole": [entry.seconds for entry in entries]}
    for stage in ("launch", "observe"):
        times[stage] = [entry.stages[stage] for entry in entries if stage in entry.stages]
    verdicts = Counter(" ".join(filter(None, [entry.verdict, entry.cause])) for entry in entries)
    return Numbers(
        launches=len(entries),
        passed=sum(entry.passed for entry in entries),
        verdicts=dict(verdicts.most_common()),
        retries=sum(len(entry.retries) for entry in entries),
        seconds={name: percentiles(values) for name, values in times.items() if values},
    )


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return the percentiles p50, p90 and p99, and the maximum.

    The nth percentile is the smallest of the values that is greater than or equal to at least n % of them.
    """
    ordered = sorted(values)
    result = {f"p{p}": ordered[max(0, math.ceil(len(ordered) * p / 100) - 1)] for p in (50, 90, 99)}
    return {**result, "max": ordered[-1]}
