"""The collectives: what each rank gives, what it must get, and what its time is worth as bandwidth.

Formulas and words are those of nccl-tests (doc/PERFORMANCE.md). GB is 10⁹ bytes; sizes are powers of two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

NAMES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")
PERIOD = 251
"""Length of the pattern in the data. A prime, so that it fits no buffer: data in the wrong place is seen."""
WEIGHTS = 16
"""Ranks have weights from 1 to this, in turn: float32 then sums over hundreds of ranks without an error."""


def factor(name: str, ranks: int) -> float:
    """Return busbw / algbw of a collective over `ranks` ranks."""
    if ranks < 2 or name in ("broadcast", "send_recv"):
        return 1.0
    return (2 if name == "all_reduce" else 1) * (ranks - 1) / ranks


def size_of(name: str, elements: int, ranks: int, width: int = 4) -> int:
    """Return the bytes that nccl-tests counts, of `elements` elements in each rank's largest buffer.

    All-gather, reduce-scatter and all-to-all count the data of all ranks together; the largest buffer of a
    rank has just that. The others count one rank's buffer.
    """
    return (
        elements // ranks * ranks if name in ("all_gather", "reduce_scatter", "all_to_all") else elements
    ) * width


def bandwidth(name: str, size: int, seconds: float, ranks: int) -> tuple[float, float]:
    """Return algbw and busbw in GB/s."""
    algbw = size / seconds / 1e9
    return algbw, algbw * factor(name, ranks)


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return p50, p90, p99 and max: the smallest value that so many per cent do not pass."""
    ordered = sorted(seconds)
    at = {
        name: max(0, -(-len(ordered) * share // 100) - 1)
        for name, share in (("p50", 50), ("p90", 90), ("p99", 99))
    }
    return {**{name: ordered[index] for name, index in at.items()}, "max": ordered[-1]}


def weight(rank: int) -> int:
    return rank % WEIGHTS + 1


def total_weight(ranks: int) -> int:
    return sum(map(weight, range(ranks)))


class Exchange:
    """One collective of one size on one rank: `fresh` makes the data, `run` exchanges, `wrong` counts.

    Element i of rank r is (i mod PERIOD) × weight(r) + the iteration, so it depends on rank, place and time:
    a result of an earlier iteration, of another rank or of another place is wrong.
    """

    def __init__(self, name: str, elements: int, rank: int, ranks: int, device: Any) -> None:
        import torch

        self.name, self.rank, self.ranks = name, rank, ranks
        self.each = max(1, elements // ranks)
        whole = self.each * ranks if name in ("all_gather", "reduce_scatter", "all_to_all") else elements
        self.size = size_of(name, whole, ranks)
        self._pattern = torch.arange(whole, device=device, dtype=torch.float32).remainder_(PERIOD)
        self._senders = torch.arange(ranks, device=device, dtype=torch.float32).remainder_(WEIGHTS) + 1
        self._iteration = 0
        self.sent: Any = None
        self.got: Any = None
        self.built = False
        """Whether the backend lacks it, so that it is put together from others."""

    def fresh(self, iteration: int) -> None:
        """Make new data. What the last iteration left is overwritten by what no collective gives."""
        import torch

        self._iteration = iteration
        own = weight(self.rank)
        part = self._pattern[: self.each] if self.name == "all_gather" else self._pattern
        self.sent = part * own + iteration
        if self.name in ("all_reduce", "broadcast"):
            self.got = self.sent
        else:
            length = self.each if self.name == "reduce_scatter" else self._pattern.numel()
            self.got = torch.full((length,), -1.0, device=self._pattern.device)

    def run(self) -> None:
        """Exchange. Synchronous on CPU; on CUDA the caller waits for the device."""
        import torch.distributed as dist

        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: dist.all_reduce(self.got),
            "broadcast": lambda: dist.broadcast(self.got, self.root),
            "all_gather": lambda: dist.all_gather_into_tensor(self.got, self.sent),
            "reduce_scatter": self._reduce_scatter,
            "all_to_all": lambda: dist.all_to_all_single(self.got, self.sent),
            "send_recv": self._ring,
        }
        calls[self.name]()

    @property
    def root(self) -> int:
        """Return who broadcasts: another rank in each iteration."""
        return self._iteration % self.ranks

    def expected(self) -> Any:
        """Return what this rank must have got."""
        import torch

        pattern, sums = self._pattern, total_weight(self.ranks)
        if self.name == "all_reduce":
            return pattern * sums + self._iteration * self.ranks
        if self.name == "broadcast":
            return pattern * weight(self.root) + self._iteration
        if self.name == "send_recv":
            return pattern * weight((self.rank - 1) % self.ranks) + self._iteration
        own = slice(self.rank * self.each, (self.rank + 1) * self.each)
        if self.name == "reduce_scatter":
            return pattern[own] * sums + self._iteration * self.ranks
        part = pattern[: self.each] if self.name == "all_gather" else pattern[own]
        return torch.outer(self._senders, part).flatten() + self._iteration

    def wrong(self) -> int:
        """Return how many elements are not what they must be."""
        return int((self.got != self.expected()).sum())

    def _reduce_scatter(self) -> None:
        import torch
        import torch.distributed as dist

        if not self.built:
            try:
                dist.reduce_scatter_tensor(self.got, self.sent)
                return
            except (RuntimeError, NotImplementedError) as error:
                if "support" not in str(error) and "implement" not in str(error):
                    raise
                self.built = True  # gloo of some versions has none
        parts = torch.empty_like(self.sent)
        dist.all_to_all_single(parts, self.sent)
        self.got.copy_(parts.view(self.ranks, self.each).sum(0))

    def _ring(self) -> None:
        """Send to the next rank and receive from the one before."""
        import torch.distributed as dist

        if self.ranks == 1:
            self.got.copy_(self.sent)
            return
        after, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        both = [dist.P2POp(dist.isend, self.sent, after), dist.P2POp(dist.irecv, self.got, before)]
        for work in dist.batch_isend_irecv(both):
            work.wait()
