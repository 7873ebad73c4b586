"""Determine which of a metric's rows Pluto keeps. For each step, this is the row with the latest time.

If several rows for a step have the same time, Pluto keeps the one that was logged last. So if a rank's steps
go back or repeat, later rows replace earlier ones. Beyond the ground truth's row limit, only the rows that
Pluto keeps can be compared with the run. This module uses only the standard library, and supports Python 3.9
and later.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator


class KeptRows:
    """All rows of one metric, in the order in which they were logged. Each row uses 24 bytes of memory."""

    def __init__(self) -> None:
        self._steps, self._values, self._times = array("q"), array("d"), array("q")
        self.ascending = True
        """Whether each step so far was higher than the previous step."""
        self.known = True
        """False if at least one row was omitted because its step does not fit into 64 bits."""

    def put(self, step: int, value: float, time_ms: int) -> None:
        """Add the next row that the rank logged."""
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
        """Yield (step, kept value, differ, dropped) for each step, in ascending order.

        `differ` is true if the step has several different values. `dropped` is true if Pluto does not keep
        the value that was logged last.
        """
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
        """Return the row that Pluto keeps for one step. `group` contains the step's rows, sorted by time."""
        last, value = max(group), self._values[group[-1]]
        has_other_values = len({repr(self._values[place]) for place in group}) > 1
        return self._steps[last], value, has_other_values, repr(self._values[last]) != repr(value)
