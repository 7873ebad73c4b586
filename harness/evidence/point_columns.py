"""Raw rows of a tracker in columns, and their lines in the evidence.

A record for each of a million rows would take longer than the tracker takes to give them. The lines are those
of Point to the byte (tests/unit/evidence/test_point_columns.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

from pydantic_core import to_json

from harness.evidence.tracker_records import Point

AT_ONCE = 10_000


@dataclass(frozen=True)
class PointColumns:
    """Rows of one run by one sender, in arrival order: what Point says, the columns of equal length."""

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
        """Yield each row as a record."""
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

    def lines(self, redact: Callable[[str], str]) -> bytes:
        """Return the rows as JSON lines. Secrets can only be in texts, so each text is redacted once."""

        def written(text: str | None) -> str:
            return "null" if text is None else to_json(redact(text)).decode()

        metrics = {name: written(name) for name in set(self.metrics)}
        whose = f'"sender":{written(self.sender)},"peer":{written(self.peer)},"launch":{written(self.launch)}'
        ends = {at: f'"received_at":{written(at)},{whose}}}\n' for at in set(self.received_at)}
        values = to_json(list(self.values), inf_nan_mode="strings")[1:-1].decode().split(",")
        columns = (self.metrics, self.steps, values if self.metrics else [], self.times_ms, self.received_at)
        start = f'{{"run_id":{self.run_id},"metric":'
        return "".join(
            [
                f'{start}{metrics[metric]},"step":{step},"value":{value},"time_ms":{time_ms},{ends[at]}'
                for metric, step, value, time_ms, at in zip(*columns, strict=True)
            ]
        ).encode()


def of_points(points: Iterable[Point]) -> Iterator[PointColumns]:
    """Yield columns of records: new ones wherever the run or the sender changes, and after AT_ONCE rows."""
    for (run_id, sender, peer, launch), group in groupby(
        points, lambda point: (point.run_id, point.sender, point.peer, point.launch)
    ):
        while some := list(islice(group, AT_ONCE)):
            yield PointColumns(
                run_id,
                [one.metric for one in some],
                [one.step for one in some],
                [one.value for one in some],
                [one.time_ms for one in some],
                [one.received_at for one in some],
                sender,
                peer,
                launch,
            )
