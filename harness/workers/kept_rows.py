"""The rows of one metric as Pluto keeps them: of each step the one with the latest time, else the last.

A rank whose steps fall or repeat logs rows that replace others. Past the row limit of the ground truth, only
the rows that stay can be compared with the run. Standard library only, Python 3.9 and later.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator


class KeptRows:
    """Every row of one metric, in the order in which it was logged. 24 bytes for each row."""

    def __init__(self) -> None:
        self._steps, self._values, self._times = array("q"), array("d"), array("q")
        self.ascending = True
        """Whether each step was higher than the one before."""
        self.known = True
        """False after a row that an array cannot hold."""

    def put(self, step: int, value: float, time_ms: int) -> None:
        """Take one row."""
        try:
            if self._steps and step <= self._steps[-1]:
                self.ascending = False
            self._steps.append(step)
        except OverflowError:
            self.ascending = self.known = False
            return
        self._values.append(value)
        self._times.append(time_ms)

    def kept(self) -> Iterator[tuple[int, float, bool, bool]]:
        """Yield (step, value, whether another value came for it, whether an older value stays), by step."""
        order = range(len(self._steps))
        by_time = sorted(order, key=self._times.__getitem__)
        by_step = sorted(by_time, key=self._steps.__getitem__)
        group: list[int] = []
        for place in by_step:
            if group and self._steps[group[-1]] != self._steps[place]:
                yield self._row(group)
                group = []
            group.append(place)
        if group:
            yield self._row(group)

    def _row(self, group: list[int]) -> tuple[int, float, bool, bool]:
        """Return what stays of rows of one step, which are in the order of their times."""
        last, value = max(group), self._values[group[-1]]
        again = len({repr(self._values[place]) for place in group}) > 1
        return self._steps[last], value, again, repr(self._values[last]) != repr(value)
