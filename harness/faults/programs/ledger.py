"""The ledger of generated programs, docs/programs.json.

For each seed, the ledger contains the number of programs for each oracle decision, and all programs whose
verdict was not right (misses). A new session continues after the last program in the ledger. Faults whose
ranks ran programs on a cluster (`harness faults --random N --programs`) are recorded by name.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel

from harness.core.errors import UsageError
from harness.core.user_files import MAX_RECORD_BYTES, read_text
from harness.faults.random.generator import PROGRAM
from harness.faults.results import Row


class Outcome(BaseModel):
    """The oracle's decision about a program's verdict."""

    seed: int
    number: int
    word: str
    about: str
    got: str
    right: str
    seconds: float = 0.0
    bundle: str | None = None
    """The path of the bundle. It is None if the verdict is right, because the bundle is then removed."""

    @property
    def line(self) -> str:
        description = f"program {self.number} of seed {self.seed} ({self.about})"
        return f"{self.word}: {description}: {self.got}; expected: {self.right}"


class Seed(BaseModel):
    """The results of the programs that were generated from one seed."""

    programs: int = 0
    """The number of programs that ran. Programs run in order, starting with program 0."""
    words: dict[str, int] = {}
    misses: list[Outcome] = []


class Ledger(BaseModel):
    """The content of the ledger file."""

    seeds: dict[int, Seed] = {}
    draws: dict[str, str] = {}
    """Maps each random fault whose ranks ran a program to the oracle's decision (random/oracle_table.py)."""

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """Return the ledger in a file, or an empty ledger if the file does not exist. Raises UsageError if
        the file is not a ledger."""
        if not path.exists():
            return cls()
        try:
            return cls.model_validate_json(read_text(path, "ledger", max_bytes=MAX_RECORD_BYTES))
        except ValueError as error:
            raise UsageError(f"{path} is not a valid ledger of programs: {error}") from None

    def add(self, outcome: Outcome) -> None:
        """Add the result of the next program for a seed."""
        seed = self.seeds.setdefault(outcome.seed, Seed())
        seed.programs = max(seed.programs, outcome.number + 1)
        seed.words[outcome.word] = seed.words.get(outcome.word, 0) + 1
        if outcome.word != "right":
            seed.misses.append(outcome.model_copy(update={"bundle": None, "seconds": 0.0}))

    def again(self, outcome: Outcome) -> None:
        """Replace the result of a program that was run again because its verdict had not been right."""
        seed = self.seeds[outcome.seed]
        old = next(miss for miss in seed.misses if miss.number == outcome.number)
        seed.misses.remove(old)
        seed.words[old.word] -= 1
        self.add(outcome)

    def add_draws(self, rows: Iterable[Row]) -> None:
        """Add or replace the results of random faults in jobs whose ranks ran one of the programs."""
        results = {row.fault: row.oracle for row in rows if row.oracle and row.fault.endswith(PROGRAM)}
        self.draws = dict(sorted({**self.draws, **results}.items()))

    def write(self, path: Path) -> None:
        """Write the ledger to a file."""
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
        """Return one or two sentences with the numbers of programs and random faults."""
        words = sum((Counter(seed.words) for seed in self.seeds.values()), Counter[str]())
        text = f"{sum(words.values())} programs of {len(self.seeds)} seeds: {_counts(words)}"
        return (
            f"{text}. {len(self.draws)} draws: {_counts(Counter(self.draws.values()))}"
            if self.draws
            else text
        )


def _counts(words: Counter[str]) -> str:
    return ", ".join(f"{number} {word}" for word, number in sorted(words.items()) if number) or "none yet"
