"""The ledger of generated programs, docs/programs.json: what the oracle said of each seed, and every miss.

A session continues where the ledger ends. Faults drawn with programs on a cluster (`harness faults --random N
--programs`) are added by their names.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel

from harness.core.errors import UsageError
from harness.core.user_files import MAX_RECORD_BYTES, read_text
from harness.faults.draw import PROGRAM
from harness.faults.rows import Row


class Outcome(BaseModel):
    """What the oracle says of the verdict of one program."""

    seed: int
    number: int
    word: str
    about: str
    got: str
    right: str
    seconds: float = 0.0
    bundle: str | None = None
    """None: the verdict is right, and the bundle is gone."""

    @property
    def line(self) -> str:
        which = f"program {self.number} of seed {self.seed} ({self.about})"
        return f"{self.word}: {which}: {self.got}; right is: {self.right}"


class Seed(BaseModel):
    """What is known of one seed."""

    programs: int = 0
    """Programs 0 to this number ran."""
    words: dict[str, int] = {}
    misses: list[Outcome] = []


class Ledger(BaseModel):
    """The ledger, for several threads."""

    seeds: dict[int, Seed] = {}
    draws: dict[str, str] = {}
    """Name of a drawn fault whose ranks ran a program → what its oracle said (harness/faults/tally.py)."""

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """Return the ledger of a file, or an empty one. Raises UsageError."""
        if not path.exists():
            return cls()
        try:
            return cls.model_validate_json(read_text(path, "ledger", most=MAX_RECORD_BYTES))
        except ValueError as error:
            raise UsageError(f"{path} is no ledger of programs: {error}") from None

    def add(self, outcome: Outcome) -> None:
        """Add the next program of a seed."""
        seed = self.seeds.setdefault(outcome.seed, Seed())
        seed.programs = max(seed.programs, outcome.number + 1)
        seed.words[outcome.word] = seed.words.get(outcome.word, 0) + 1
        if outcome.word != "right":
            seed.misses.append(outcome.model_copy(update={"bundle": None, "seconds": 0.0}))

    def again(self, outcome: Outcome) -> None:
        """Replace what is known of a program that was a miss."""
        seed = self.seeds[outcome.seed]
        old = next(miss for miss in seed.misses if miss.number == outcome.number)
        seed.misses.remove(old)
        seed.words[old.word] -= 1
        self.add(outcome)

    def add_draws(self, rows: Iterable[Row]) -> None:
        """Add drawn faults whose ranks ran programs. One that is there already is replaced."""
        found = {row.fault: row.oracle for row in rows if row.oracle and row.fault.endswith(PROGRAM)}
        self.draws = dict(sorted({**self.draws, **found}.items()))

    def write(self, path: Path) -> None:
        """Replace the file."""
        partial = path.with_suffix(".partial")
        partial.write_text(
            self.model_dump_json(
                indent=1, exclude={"seeds": {"__all__": {"misses": {"__all__": {"bundle", "seconds"}}}}}
            )
            + "\n"
        )
        os.replace(partial, path)

    @property
    def summary(self) -> str:
        """Return the counts in a sentence or two."""
        words = sum((Counter(seed.words) for seed in self.seeds.values()), Counter[str]())
        told = f"{sum(words.values())} programs of {len(self.seeds)} seeds: {_counts(words)}"
        return (
            f"{told}. {len(self.draws)} draws: {_counts(Counter(self.draws.values()))}"
            if self.draws
            else told
        )


def _counts(words: Counter[str]) -> str:
    return ", ".join(f"{number} {word}" for word, number in sorted(words.items()) if number) or "none yet"
