"""Compute digests of the points that Pluto keeps for each metric, in bounded memory.

The recorder in an admitted pod (digest_recording.py) updates the digests while a rank logs. The judge
computes the same digests from the tracker's points (harness/judge/points/digest_check.py). A leaf is the
digest of one metric's points in one block of BLOCK_STEPS steps, sorted by step. The digest of several leaves
is their sum modulo 2**128, so it does not depend on the order in which the blocks were completed. This module
uses only the standard library, and supports Python 3.9 and later.

For each step, Pluto keeps the point with the latest time, or the last one logged if the times are equal. A
later point can thus replace an earlier one, so recent blocks keep their points. If these blocks contain more
than `max_rows` points in total, the oldest blocks are reduced to their digests. If another point for such a
block arrives later, it cannot be added to the digest. The block's digest is then unknown, while all other
digests remain exact.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any

from .digest_lines import short

BLOCK_STEPS = 1000
MAX_ROWS = 50_000
"""Maximum total number of points in the recent blocks of all metrics."""
MAX_METRICS = 10_000
"""Maximum number of metrics with digests. For all further metrics, only the number of points is recorded."""
MAX_NODES = 2048
"""Maximum number of digests (nodes) per metric. If there are more, each pair of neighbouring nodes is merged
into one."""
MAX_ALL_NODES = 100_000
MASK = (1 << 128) - 1
NAN = float("nan")
MAX_CLOSED = 10_000
"""Maximum total number of entries that wait for `take` after their blocks were reduced to digests."""
Entry = tuple[str, int, int, str, int, int]
"""The data that is reported about a block: (metric, block, number of points, digest, time of the metric's
first point, time of its last point so far)."""
_ROW = Struct("<qd")


def start(metric: str, block: int) -> Any:
    """Return the initial hash object for a leaf, before any points are added."""
    return hashlib.sha256(f"{block}\n{metric}\n".encode(errors="surrogatepass"))


def finish(leaf: Any) -> int:
    return int.from_bytes(leaf.digest()[:16], "big")


def leaf_of(metric: str, block: int, steps: Sequence[int], values: Sequence[float]) -> int:
    """Return the digest of a block's points. The steps must be in ascending order.

    All NaNs have the same digest, and so do 0.0 and -0.0, because the judge treats them as equal.
    """
    rows = array("q", bytes(16 * len(steps)))
    rows[0::2] = array("q", steps)
    rows[1::2] = array("q", array("d", [v + 0.0 if v == v else NAN for v in values]).tobytes())  # noqa: PLR0124
    if _BIG_ENDIAN:
        rows.byteswap()
    leaf = start(metric, block)
    leaf.update(rows.tobytes())
    return finish(leaf)


_BIG_ENDIAN = array("q", [1]).tobytes()[0] == 0


class Block:
    """The points of one metric in one block of steps, or only their hash, to save memory."""

    __slots__ = ("_digest", "_hash", "_last", "count", "rows")

    def __init__(self) -> None:
        self.count = 0
        """The number of distinct steps in the block."""
        self.rows: dict[int, tuple[float, int]] | None = {}
        """Maps each step to (value, time). None after the points have been hashed."""
        self._hash: Any = None
        self._last: tuple[int, float, int] = (0, 0.0, 0)
        """The last point, if the other points have been hashed."""
        self._digest: int | None = None

    def put(self, step: int, value: float, time_ms: int) -> int:
        """Add a point. Return 1 if its step is new, 0 if not, and -1 if the point can no longer be added."""
        rows = self.rows
        if rows is None:
            return self._put_last(step, value, time_ms)
        previous = rows.get(step)
        if previous is not None and time_ms < previous[1]:
            return 0
        self._digest = None
        rows[step] = value, time_ms
        if previous is not None:
            return 0
        self.count += 1
        return 1

    def _put_last(self, step: int, value: float, time_ms: int) -> int:
        last, last_value, at = self._last
        if step < last:
            return -1
        if step == last and time_ms < at:
            return 0
        if step > last:
            self._hash.update(_packed(last, last_value))
            self.count += 1
        self._digest = None
        self._last = step, value, time_ms
        return int(step > last)

    def hash_rows(self, metric: str, block: int) -> int:
        """Hash the points and discard all but the last one. Return how many points the block contained."""
        assert self.rows
        *head, last = sorted(self.rows)
        self._hash = start(metric, block)
        for step in head:
            self._hash.update(_packed(step, self.rows[step][0]))
        self._last = last, *self.rows[last]
        self.rows = None
        return len(head) + 1

    def digest(self, metric: str, block: int) -> int:
        """Return the digest of the points so far."""
        if self._digest is None:
            if self.rows is not None:
                steps = sorted(self.rows)
                self._digest = leaf_of(metric, block, steps, [self.rows[step][0] for step in steps])
            else:
                leaf = self._hash.copy()
                leaf.update(_packed(*self._last[:2]))
                self._digest = finish(leaf)
        return self._digest


def _packed(step: int, value: float) -> bytes:
    return _ROW.pack(step, value + 0.0 if value == value else NAN)  # noqa: PLR0124


class Metric:
    """The digests and counts for one metric."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        """Number of distinct steps. Points that could not be added are not counted."""
        self.first = self.last = 0
        self.began_ms = self.ended_ms = 0
        self.open: dict[int, Block] = {}
        self.level = 0
        """The level of `nodes`. Each node is the sum of the leaf digests of 2**level neighbouring blocks."""
        self.nodes: dict[int, int] = {}
        self.unknown: set[int] = set()
        """The nodes whose digests are unknown, because a point could not be added to them."""
        self.closed: list[Entry] = []
        """The entries of blocks that were closed before `take` could return their entries."""
        self._closed = -1
        """The highest block number that was closed, or -1."""
        self.changed: set[int] = set()
        """The blocks that have changed since `take` last returned their entries."""
        self._latest = -1
        """The block of the last point, or -1 if that block is not in `changed`."""

    def at(self, block: int, step: int, time_ms: int) -> Block | None:
        """Return the block for a new point, or None if it has been closed."""
        if self.began_ms:
            self.first, self.last = min(self.first, step), max(self.last, step)
            self.began_ms, self.ended_ms = min(self.began_ms, time_ms), max(self.ended_ms, time_ms)
        else:
            self.first = self.last = step
            self.began_ms = self.ended_ms = time_ms
        open_block = self.open.get(block)
        if open_block is None and block > self._closed:
            open_block = self.open[block] = Block()
        if block != self._latest and open_block is not None:
            self.changed.add(block)
            self._latest = block
        return open_block

    def close(self, block: int) -> None:
        """Reduce a block to its digest, and discard the block's points."""
        if block in self.changed:
            self.closed.append(self._entry(block))
        digest = self.open.pop(block).digest(self.name, block)
        node = block >> self.level
        self.nodes[node] = (self.nodes.get(node, 0) + digest) & MASK
        self._closed = max(self._closed, block)
        while len(self.nodes) > MAX_NODES:
            self.coarsen()

    def take(self, *, at_end: bool) -> list[Entry]:
        """Return an entry for each complete block that has changed since its last entry.

        A block is complete if a later block has points. At the end of a run, all blocks are complete.
        """
        entries, self.closed = self.closed, []
        newest = max(self.open, default=-1)
        for block in sorted(self.changed):
            if at_end or block < newest:
                entries.append(self._entry(block))
        return entries

    def _entry(self, block: int) -> Entry:
        points = self.open[block]
        digest = short(points.digest(self.name, block))
        self.changed.discard(block)
        if block == self._latest:
            self._latest = -1
        return self.name, block, points.count, digest, self.began_ms, self.ended_ms

    def coarsen(self) -> None:
        """Halve the number of nodes by adding the digests of each pair of neighbouring nodes."""
        self.level += 1
        self.nodes = merged(self.nodes)
        self.unknown = {node >> 1 for node in self.unknown}

    def all_nodes(self) -> dict[int, int]:
        """Return the digests, keyed by node, including the recent blocks."""
        nodes = dict(self.nodes)
        for block, points in self.open.items():
            node = block >> self.level
            nodes[node] = (nodes.get(node, 0) + points.digest(self.name, block)) & MASK
        return nodes


def merged(nodes: dict[int, int]) -> dict[int, int]:
    """Return the nodes for the next level, each the sum of two neighbouring nodes."""
    above: dict[int, int] = {}
    for node, digest in nodes.items():
        above[node >> 1] = (above.get(node >> 1, 0) + digest) & MASK
    return above


class Digests:
    """The digests of all metrics that a process logged to one run. Not thread-safe."""

    def __init__(self, max_rows: int = MAX_ROWS, max_metrics: int = MAX_METRICS) -> None:
        self.metrics: dict[str, Metric] = {}
        self.uncounted = 0
        """Number of points without digests. They belong to metrics after the first `max_metrics`."""
        self.dropped = 0
        """Number of entries that were dropped because `take` was not called in time."""
        self._max_rows, self._max_metrics = max_rows, max_metrics
        self._rows = 0
        self._by_age: dict[tuple[str, int], None] = {}
        """The (metric, block) of each block that still has its points, in the order of their first points."""

    @property
    def count(self) -> int:
        """Return the number of points that Pluto keeps, except points that could not be added."""
        return sum(metric.count for metric in self.metrics.values())

    def put(self, name: str, step: int, value: float, time_ms: int) -> None:
        """Add a point that the client queued. `step` must be between 0 and 2**63 - 1."""
        metric = self.metrics.get(name)
        if metric is None:
            if len(self.metrics) >= self._max_metrics:
                self.uncounted += 1
                return
            metric = self.metrics[name] = Metric(name)
        block = step // BLOCK_STEPS
        points = metric.at(block, step, time_ms)
        added = -1 if points is None else points.put(step, value, time_ms)
        if added < 0:
            metric.unknown.add(block >> metric.level)
            return
        metric.count += added
        if added and points is not None and points.rows is not None:
            self._rows += 1
            if len(points.rows) == 1:
                self._by_age[name, block] = None
            if self._rows > self._max_rows:
                self._shrink()

    def _shrink(self) -> None:
        """Reduce the oldest blocks to digests until at most `max_rows` / 2 points remain in memory."""
        while self._rows > self._max_rows // 2 and self._by_age:
            name, block = next(iter(self._by_age))
            del self._by_age[name, block]
            metric = self.metrics[name]
            self._rows -= metric.open[block].hash_rows(name, block)
            newest = max(metric.open)
            for old in [one for one, points in metric.open.items() if points.rows is None and one < newest]:
                metric.close(old)
            if len(metric.closed) > MAX_CLOSED // max(1, len(self.metrics)):
                self.dropped += len(metric.closed)
                metric.closed.clear()
        self._limit_nodes()

    def _limit_nodes(self) -> None:
        while sum(len(metric.nodes) for metric in self.metrics.values()) > MAX_ALL_NODES:
            max(self.metrics.values(), key=lambda metric: len(metric.nodes)).coarsen()

    def take(self, *, at_end: bool = False) -> tuple[list[Entry], int]:
        """Return the entries of all metrics (`Metric.take`), and the number of dropped entries."""
        dropped, self.dropped = self.dropped, 0
        entries = [entry for metric in self.metrics.values() for entry in metric.take(at_end=at_end)]
        return entries, dropped

    @property
    def untaken(self) -> int:
        """Return the number of blocks that have changed since `take` last returned their entries."""
        return sum(len(metric.changed) for metric in self.metrics.values())

    def total(self) -> int:
        """Return the sum of all leaf digests, modulo 2**128."""
        return sum(sum(metric.all_nodes().values()) for metric in self.metrics.values()) & MASK


def nodes_of(metric: str, steps: Sequence[int], values: Sequence[float]) -> dict[int, int]:
    """Return the digests of a metric's points, keyed by block. The steps must be in ascending order."""
    return {
        block: leaf_of(metric, block, steps[begin:end], values[begin:end])
        for block, begin, end in _blocks(steps)
    }


def _blocks(steps: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (block, begin, end) for each block, where begin:end is its range of indices in `steps`."""
    begin = 0
    while begin < len(steps):
        block = steps[begin] // BLOCK_STEPS
        end = bisect_left(steps, (block + 1) * BLOCK_STEPS, begin)
        yield block, begin, end
        begin = end
