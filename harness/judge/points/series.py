"""A metric's points by step, stored in arrays and deduplicated in the same way as on the tracker.

A dictionary of Python numbers needs 100 bytes per point, and a launch with 512 ranks has millions of points.
A comparison of two series first compares their bytes. It compares individual points only if the bytes differ.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections.abc import ItemsView, Iterable, Iterator, Mapping, MutableSequence
from functools import lru_cache
from itertools import cycle, islice, repeat

import msgspec

from harness.evidence.schema.columns import Columns, Part
from harness.workers.ground_truth.truth_frames import encode_value

Numbers = MutableSequence[int]
"""Integers in an array("q"), or in a list if any of them does not fit into 64 bits."""


class Series(Mapping[int, float]):
    """A mapping from step to value, in the order in which each step first occurred.

    Each point can have a mark, which is a small number that identifies the process that logged the point.

    If there are two points for one step, the one with the later client time counts. If times are equal, the
    last one counts.
    """

    __slots__ = ("_marks", "_places", "_steps", "_times", "_values", "older", "overwrites")

    def __init__(self, rows: Iterable[tuple[int, float]] = ()) -> None:
        """Create a series from (step, value) pairs that all have the same time."""
        self._steps: Numbers = array("q")
        self._times: Numbers = array("q")
        self._values = array("d")
        self._marks = array("H")
        self.overwrites: dict[tuple[int, int], Numbers] = {}
        """Maps (mark of first point, mark of second point) to the steps that were logged again with another
        value."""
        self.older: dict[int, tuple[int, int]] = {}
        """The steps whose last point does not count, because another point has a later client time. Maps each
        step to (mark of the point that counts, mark of the last point)."""
        self._places: dict[int, int] | None = None
        """The index of each step. It is None while the steps ascend, because a binary search is then
        sufficient."""
        for step, value in rows:
            self.put(step, value, 0)

    def put(self, step: int, value: float, time_ms: int, mark: int = 0) -> bool:
        """Add one point. Return whether the series already had a point for this step.

        `mark` is any small number. The method `mark()` returns the mark of the point that counts for a step.
        """
        if self._places is None and self._steps and step <= self._steps[-1]:
            self._places = {stored_step: place for place, stored_step in enumerate(self._steps)}
        if self._places is not None:
            place = self._places.setdefault(step, len(self._steps))
            if place < len(self._steps):
                old_value = self._values[place]
                self.older.pop(step, None)
                if value != old_value and (value == value or old_value == old_value):  # noqa: PLR0124
                    key = self._marks[place], min(mark, 0xFFFF)
                    self.overwrites[key] = _append(self.overwrites.get(key, array("q")), step)
                    if time_ms < self._times[place]:
                        self.older[step] = key
                if time_ms >= self._times[place]:
                    self._values[place], self._marks[place] = value, min(mark, 0xFFFF)
                    self._times = _set(self._times, place, time_ms)
                return True
        self._steps, self._times = _append(self._steps, step), _append(self._times, time_ms)
        self._values.append(value)
        self._marks.append(min(mark, 0xFFFF))
        return False

    def extend(self, steps: array[int], values: array[float], times: array[int], mark: int = 0) -> int:
        """Add points in the order in which they were logged.

        Return the number of points that repeated an existing step.
        """
        own_arrays = self._steps, self._times
        if (
            self._places is None
            and isinstance(own_arrays[0], array)
            and isinstance(own_arrays[1], array)
            and (not own_arrays[0] or not steps or steps[0] > own_arrays[0][-1])
            and ascend(steps)
        ):
            own_arrays[0].extend(steps)
            own_arrays[1].extend(times)
            self._values.extend(values)
            self._marks.extend(array("H", [min(mark, 0xFFFF)]) * len(steps))
            return 0
        return sum(map(self.put, steps, values, times, repeat(mark)))

    def _place(self, step: object) -> int:
        """Return the index of a step, or -1 if the series does not contain it."""
        if not isinstance(step, int):
            return -1
        if self._places is not None:
            return self._places.get(step, -1)
        place = bisect_left(self._steps, step)
        return place if place < len(self._steps) and self._steps[place] == step else -1

    def __getitem__(self, step: int) -> float:
        place = self._place(step)
        if place < 0:
            raise KeyError(step)
        return self._values[place]

    def __contains__(self, step: object) -> bool:
        return self._place(step) >= 0

    def __iter__(self) -> Iterator[int]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    def items(self) -> ItemsView[int, float]:
        return _Items(self)

    def __repr__(self) -> str:
        return f"Series({dict(self.items())})"

    def pairs(self) -> Iterator[tuple[int, float]]:
        """Yield (step, value) for each point."""
        return zip(self._steps, self._values, strict=True)

    def mark(self, step: int) -> int:
        """Return the mark of the point that counts for this step, or 0."""
        place = self._place(step)
        return self._marks[place] if place >= 0 else 0

    def same_steps(self, other: Series) -> bool:
        """Return whether both series have the same steps in the same order."""
        return _equal(self._steps, other._steps)

    def same_as(self, other: Series) -> bool:
        """Return whether both series have the same steps and values, bit for bit and in the same order.

        Even if the result is False, the values can be equal: 0.0 and -0.0 are equal but have different bits.
        """
        return self.same_steps(other) and self._values.tobytes() == other._values.tobytes()

    def without_times(self) -> Series:
        """Discard the times to save memory, and return the series. No more points can be added afterwards."""
        self._times = array("q")
        return self


class _Items(ItemsView[int, float]):
    """The items of a Series. Iteration over them does not search for each step."""

    def __init__(self, series: Series) -> None:
        super().__init__(series)
        self._series = series

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return self._series.pairs()


def _append(numbers: Numbers, number: int) -> Numbers:
    try:
        numbers.append(number)
    except OverflowError:
        return [*numbers, number]
    return numbers


def _set(numbers: Numbers, place: int, number: int) -> Numbers:
    try:
        numbers[place] = number
    except OverflowError:
        numbers = list(numbers)
        numbers[place] = number
    return numbers


def _equal(one: Numbers, other: Numbers) -> bool:
    if isinstance(one, array) and isinstance(other, array):
        return len(one) == len(other) and one.tobytes() == other.tobytes()
    return list(one) == list(other)


def ascend(steps: array[int]) -> bool:
    """Return whether each step is higher than the previous step."""
    return _ascend(steps.tobytes())


@lru_cache(maxsize=256)
def _ascend(steps: bytes) -> bool:
    """Return whether the encoded steps ascend. The result is cached, because all ranks log the same steps."""
    numbers = array("q", steps)
    return all(map(int.__lt__, numbers, numbers[1:]))


Rows = dict[str, Series]
"""Maps the name of each metric to its series of points."""
NONE = Series()


def put(rows: Rows, metric: str, step: int, value: float, time_ms: int, mark: int = 0) -> bool:
    """Add one point. Return whether there already was a point with the same metric and step."""
    series = rows.get(metric)
    if series is None:
        series = rows[metric] = Series()
    return series.put(step, value, time_ms, mark)


def extend(rows: Rows, parts: Iterable[Part], mark: int = 0) -> int:
    """Add columns of points to their metrics' series.

    Return the number of points that repeated an existing step.
    """
    repeated = 0
    for metric, steps, values, times in parts:
        series = rows.get(metric)
        if series is None:
            series = rows[metric] = Series()
        repeated += series.extend(steps, values, times, mark)
    return repeated


def joined(own: Series | None, other: Mapping[int, float]) -> Series:
    """Return the points of both series. For steps in both, the points in `own` count."""
    return Series({**other, **(own or {})}.items())


_encode = msgspec.json.Encoder().encode_lines
SMALL, LARGE = 1e-4, 1e16
"""The range of absolute values for which json and msgspec write the same text, without an exponent."""


def bytes_of_rows(columns: Columns) -> bytes:
    """Return the bytes from which the points' digest is computed: each point's `truth_frames.row_bytes`."""
    names = [msgspec.Raw(json.dumps(name).encode()) for name in columns.names]
    metrics = (
        islice(cycle(names), len(columns)) if columns.which is None else map(names.__getitem__, columns.which)
    )
    values = [v if SMALL <= v < LARGE or -LARGE < v <= -SMALL else _raw(v) for v in columns.values]
    return _encode(list(zip(metrics, columns.steps, values, strict=True)))


def _raw(value: float) -> float | msgspec.Raw:
    return msgspec.Raw(json.dumps(encode_value(value)).encode())
