"""A program that ran as a rank's container would, with the recorder's folder at the front of PYTHONPATH."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from harness.evidence.io.ground_truth import TruthCollector
from harness.evidence.schema.ground_truth import TruthAccount, TruthEnd, TruthLeft, TruthLine, TruthRow

NONCE = "0123abcd"
Points = dict[tuple[str, int], str]
"""(metric, step) → the value's exact text."""


@dataclass
class Ran:
    """A program that has ended, with its output, the container's log and the recorder's lines."""

    code: int
    output: str
    log: str
    truth: dict[int, list[TruthLine]] = field(init=False)
    own: dict[int, list[TruthLine]] = field(init=False)

    def __post_init__(self) -> None:
        collector = TruthCollector(NONCE)
        for line in self.log.splitlines():
            collector.feed(line)
        self.truth, self.own = collector.result(), collector.outside()

    def lines(self, rank: int = 0) -> list[TruthLine]:
        """Return its ground truth, without what it says of its code."""
        return [line for line in self.truth.get(rank, []) if line.kind not in ("code", "settings")]

    def points(self, rank: int = 0) -> Points:
        rows = [line for line in self.lines(rank) if isinstance(line, TruthRow)]
        return {(row.metric, row.step): repr(row.value) for row in rows}

    def account(self, rank: int = 0) -> TruthAccount:
        (account,) = [line for line in self.lines(rank) if isinstance(line, TruthAccount)]
        assert account.handed == account.logged + account.left
        return account

    def entries(self, rank: int = 0) -> dict[tuple[str, str, str], int]:
        """Return how many values were left out by key, type and reason."""
        lines = [line for line in self.lines(rank) if isinstance(line, TruthLeft)]
        return {entry[:3]: entry[3] for line in lines for entry in line.left}

    def left(self, rank: int = 0) -> dict[tuple[str, str], int]:
        return {(key, kind): count for (key, kind, _), count in self.entries(rank).items()}

    def ended(self, rank: int = 0) -> bool:
        return any(isinstance(line, TruthEnd) for line in self.lines(rank))


Run = Callable[..., Ran]
