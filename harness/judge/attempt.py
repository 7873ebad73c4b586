"""What one attempt of a rank recorded, from its start to its end or until it was cut off."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.evidence.columns import Columns, Part
from harness.evidence.truth_records import (
    TruthAccount,
    TruthBatching,
    TruthBlock,
    TruthClient,
    TruthCode,
    TruthEnd,
    TruthFault,
    TruthGap,
    TruthLeft,
    TruthMetrics,
    TruthRow,
    TruthSettings,
    TruthStart,
)
from harness.judge import row_bytes as many
from harness.judge.series import ascend
from harness.workers.truth_frames import row_bytes

DENSE_ROWS, DENSE_MS = 20, 30
"""A rank that recorded so many rows in so many ms may have held some back for a longer frame."""


@dataclass
class Attempt:
    """One attempt of a rank: what it recorded from its start to its end, or until it was cut off."""

    start: TruthStart | None = None
    """None when the recorder wrote no attempts."""
    end: TruthEnd | None = None
    client: TruthClient | None = None
    account: TruthAccount | None = None
    accounted: int = -1
    """The number of rows before its last account."""
    left: dict[tuple[str, str, str], tuple[int, str, str]] = field(default_factory=dict)
    """(key, type, reason) of values that the client left out → how many, first step, last step."""
    code: list[tuple[int, TruthCode]] = field(default_factory=list)
    """What it said of the code that it ran, each with its line number."""
    row_count: int = 0
    blocks: list[TruthBlock] = field(default_factory=list)
    kept: list[TruthBlock] = field(default_factory=list)
    """What Pluto keeps of metrics whose steps fell or came again. They stand for their rows and blocks."""
    metrics: dict[str, tuple[int, str]] = field(default_factory=dict)
    """metric → the number and the digest of all its rows. For attempts with blocks."""
    steps: dict[str, tuple[int, int]] = field(default_factory=dict)
    """metric → its first and last step."""
    settings: list[TruthSettings] = field(default_factory=list)
    """How it made the client, once for each init."""
    batch: int = 1
    """The number of rows for which its frames waited when it recorded fast."""
    gaps: int = 0
    fault: str = ""
    """Why the recorder around the client failed, or ""."""
    _root: hashlib._Hash = field(default_factory=hashlib.sha256)
    _counts: dict[str, int] = field(default_factory=dict)
    _digests: dict[str, hashlib._Hash] = field(default_factory=dict)
    _times: deque[int] = field(default_factory=lambda: deque(maxlen=DENSE_ROWS))

    @property
    def is_child(self) -> bool:
        """Return whether it is a process that the rank started, such as an evaluation, and logs too."""
        return self.start is not None and self.start.parent is not None

    @property
    def count(self) -> int:
        return self.row_count + sum(block.count for block in self.blocks)

    @property
    def compared(self) -> list[TruthBlock]:
        """Return what must be compared in blocks: those of metrics in disorder as Pluto keeps them."""
        kept = {block.metric for block in self.kept}
        return [*(block for block in self.blocks if block.metric not in kept), *self.kept]

    @property
    def counts(self) -> dict[str, int]:
        """Map each metric to the number of its rows, those in blocks included."""
        counts = dict(self._counts)
        for block in self.blocks:
            counts[block.metric] = counts.get(block.metric, 0) + block.count
        return counts

    @property
    def last_ms(self) -> int | None:
        """Return when it recorded its last row, in milliseconds since the epoch. None without rows."""
        return self._times[-1] if self._times else None

    def told(
        self,
        number: int,
        line: TruthAccount
        | TruthBatching
        | TruthBlock
        | TruthClient
        | TruthCode
        | TruthGap
        | TruthFault
        | TruthLeft
        | TruthMetrics
        | TruthSettings
        | TruthEnd,
    ) -> None:
        """Take what is no row. `number` is its line."""
        if isinstance(line, TruthBlock):
            (self.kept if line.kept else self.blocks).append(line)
            self._reach(line.metric, line.first, line.last)
        elif isinstance(line, TruthClient):
            self.client = line
        elif isinstance(line, TruthCode):
            self.code.append((number, line))
        elif isinstance(line, TruthLeft):
            self.left |= {(key, kind, why): entry for key, kind, why, *entry in line.left}  # type: ignore[misc]
        elif isinstance(line, TruthAccount):
            self.account, self.accounted = line, self.count
        elif isinstance(line, TruthMetrics):
            self.metrics |= {metric: (count, sha256) for metric, count, sha256 in line.metrics}
        elif isinstance(line, TruthBatching):
            self.batch = line.rows
        elif isinstance(line, TruthGap):
            self.gaps += 1
        elif isinstance(line, TruthSettings):
            self.settings.append(line)
        elif isinstance(line, TruthFault):
            self.fault = self.fault or line.text
        else:
            self.gaps += self.end is not None
            self.end = line
            self.metrics |= line.metrics

    def take(self, row: TruthRow) -> None:
        """Count and digest one row. Rows must come in the order in which the rank recorded them."""
        data = row_bytes(row.metric, row.step, row.value)
        self._root.update(data)
        self._digests.setdefault(row.metric, hashlib.sha256()).update(data)
        self._counts[row.metric] = self._counts.get(row.metric, 0) + 1
        self.row_count += 1
        self._reach(row.metric, row.step, row.step)
        self._times.append(row.time_ms)

    def take_columns(self, columns: Columns, parts: Iterable[Part], by_metric: bool) -> None:
        """Count and digest rows in columns, as `take` does one by one. `parts` are its metrics.

        Digests by metric take long, and are for attempts with blocks alone.
        """
        data = many.row_bytes(columns)
        self._root.update(data)
        for name, steps, _, _ in parts:
            self._counts[name] = self._counts.get(name, 0) + len(steps)
            low, high = (steps[0], steps[-1]) if ascend(steps) else (min(steps), max(steps))
            self._reach(name, low, high)
        if by_metric:
            for name, line in zip(columns.metrics(), data.splitlines(keepends=True), strict=True):
                self._digests.setdefault(name, hashlib.sha256()).update(line)
        self.row_count += len(columns)
        self._times.extend(columns.times[-DENSE_ROWS:])

    def _reach(self, metric: str, low: int, high: int) -> None:
        """Widen `steps` by those from `low` to `high`."""
        first, last = self.steps.get(metric, (low, high))
        self.steps[metric] = min(first, low), max(last, high)

    @property
    def dense(self) -> bool:
        """Return whether its last rows came so fast that a cut-off may have lost some of them."""
        return len(self._times) == DENSE_ROWS and self._times[-1] - self._times[0] <= DENSE_MS

    @property
    def fits(self) -> bool:
        """Return whether its rows match its end line: by the root digest, or by metric if it has blocks."""
        assert self.end is not None
        if not self.blocks:
            return self._root.hexdigest() == self.end.sha256
        if not self.metrics:
            return True  # an older recorder, with more metrics than one frame had room for
        if self.counts != {metric: count for metric, (count, _) in self.metrics.items()}:
            return False
        whole = self._digests.keys() - {block.metric for block in self.blocks}
        return all(self._digests[metric].hexdigest() == self.metrics[metric][1] for metric in whole)
