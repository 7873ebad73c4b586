"""Raw rows from the tracker, stored in columns.

Creating an object for each of a million rows would take longer than receiving them from the tracker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice

from harness.evidence.schema.tracker import Point

AT_ONCE = 10_000


@dataclass(frozen=True)
class PointRows:
    """Rows for one run from one sender, in arrival order.

    The fields correspond to those of Point. All columns have the same length.
    """

    run_id: int
    metrics: Sequence[str]
    steps: Sequence[int]
    values: Sequence[float]
    times_ms: Sequence[int]
    received_at: Sequence[str]
    sender: str | None = None
    peer: str | None = None
    launch: str | None = None

    def __len__(self) -> int:
        return len(self.metrics)

    def records(self) -> Iterator[Point]:
        """Yield a Point for each row."""
        columns = (self.metrics, self.steps, self.values, self.times_ms, self.received_at)
        for metric, step, value, time_ms, received_at in zip(*columns, strict=True):
            yield Point(
                run_id=self.run_id,
                metric=metric,
                step=step,
                value=value,
                time_ms=time_ms,
                received_at=received_at,
                sender=self.sender,
                peer=self.peer,
                launch=self.launch,
            )

    def before(self, row: int) -> PointRows:
        """Return the rows before the index `row`."""
        return self._part(slice(row))

    def after(self, row: int) -> PointRows:
        """Return the rows from the index `row` onwards."""
        return self._part(slice(row, None)) if row else self

    def _part(self, part: slice) -> PointRows:
        return replace(
            self,
            metrics=self.metrics[part],
            steps=self.steps[part],
            values=self.values[part],
            times_ms=self.times_ms[part],
            received_at=self.received_at[part],
        )


def of_points(points: Iterable[Point]) -> Iterator[PointRows]:
    """Group points into PointRows objects of at most AT_ONCE rows each.

    Each yielded object contains rows for one run from one sender.
    """
    for (run_id, sender, peer, launch), group in groupby(
        points, lambda point: (point.run_id, point.sender, point.peer, point.launch)
    ):
        while chunk := list(islice(group, AT_ONCE)):
            yield PointRows(
                run_id,
                [one.metric for one in chunk],
                [one.step for one in chunk],
                [one.value for one in chunk],
                [one.time_ms for one in chunk],
                [one.received_at for one in chunk],
                sender,
                peer,
                launch,
            )
