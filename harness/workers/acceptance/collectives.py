"""Run collectives on known data, verify what each rank receives, and compute the bandwidth.

The formulas and terms are the same as in nccl-tests (doc/PERFORMANCE.md). 1 GB is 10⁹ bytes. Sizes are powers
of two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

NAMES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")
ELEMENTS = {
    ("cpu", "quick"): (1 << 14, 1 << 18),
    ("cpu", "full"): (1 << 14, 1 << 18, 1 << 22),
    ("cuda", "quick"): (1 << 18, 1 << 24, 1 << 28),
    ("cuda", "full"): (1 << 18, 1 << 22, 1 << 26, 1 << 28, 1 << 30, 1 << 31, 1 << 32),
}
"""Maps (device, mode) to the tested sizes. A size is the number of float32 elements in a rank's largest
buffer. limits.toml contains limits for sizes from 2²⁸ to 2³² elements."""
PERIOD = 251
"""Period of the data pattern, in elements. It is a prime that does not divide any buffer size, so that
misplaced data is detected."""
PART = 1 << 22
"""Number of elements that are generated or compared at a time."""
BUFFERS, PARTS = 2, 6
"""A rank needs memory for BUFFERS buffers of the payload's size, and for PARTS int64 buffers of PART
elements."""
WEIGHTS = 16
"""The ranks' weights in the data pattern cycle from 1 to WEIGHTS. They are small, so that float32 sums over
hundreds of ranks are exact."""


def factor(name: str, ranks: int) -> float:
    """Return the ratio busbw / algbw for a collective over `ranks` ranks.

    For a single rank, the ratio is 0, except for broadcast and send_recv.
    """
    if name in ("broadcast", "send_recv"):
        return 1.0
    return (2 if name == "all_reduce" else 1) * (ranks - 1) / ranks


def size_of(name: str, elements: int, ranks: int, width: int = 4) -> int:
    """Return the payload size in bytes, as nccl-tests defines it.

    `elements` is the number of elements in each rank's largest buffer. For all-gather, reduce-scatter and
    all-to-all, this buffer contains the data of all ranks, and its size is rounded down to a multiple of the
    number of ranks.
    """
    return (
        elements // ranks * ranks if name in ("all_gather", "reduce_scatter", "all_to_all") else elements
    ) * width


def bandwidth(name: str, size: int, seconds: float, ranks: int) -> tuple[float, float]:
    """Return the algorithm bandwidth (algbw) and the bus bandwidth (busbw) of a collective in GB/s."""
    algbw = size / seconds / 1e9
    return algbw, algbw * factor(name, ranks)


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return p50, p90, p99 and max. pN is the smallest value that at least N% of the values do not exceed."""
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


def parts(buffer: Any) -> Iterator[Any]:
    """Yield a buffer's indices in ascending order, in chunks of at most PART.

    The indices are int64, because float32 cannot represent all integers above 2²⁴.
    """
    import torch

    whole = buffer.numel()
    for first in range(0, whole, PART):
        yield torch.arange(first, min(first + PART, whole), device=buffer.device)


def need(elements: int) -> int:
    """Return how many bytes of memory a collective needs at most if its buffer has `elements` elements."""
    return BUFFERS * elements * 4 + PARTS * min(elements, PART) * 8


class Exchange:
    """One collective with one payload size, on one rank.

    `fresh` generates the data, `run` exchanges it, and `wrong` counts the wrong elements. Element i on rank r
    is (i mod PERIOD) × weight(r) + iteration number. So if data comes from a different iteration, rank or
    position, it is detected as wrong. Data is generated and compared in chunks of PART elements, so that a
    rank needs little more memory than for two payload-sized buffers (BUFFERS).
    """

    def __init__(self, name: str, elements: int, rank: int, ranks: int, device: Any) -> None:
        import torch

        self.name, self.rank, self.ranks = name, rank, ranks
        self.each = max(1, elements // ranks)
        total = self.each * ranks if name in ("all_gather", "reduce_scatter", "all_to_all") else elements
        self.size = size_of(name, total, ranks)
        self._iteration = 0
        sent_size = self.each if name == "all_gather" else total
        self.sent: Any = torch.empty(sent_size, device=device)
        in_place = name in ("all_reduce", "broadcast")
        received_size = self.each if name == "reduce_scatter" else total
        self.got: Any = self.sent if in_place else torch.empty(received_size, device=device)
        self.built = False
        """Whether the backend lacks this collective, so that other collectives emulate it."""

    def fresh(self, iteration: int) -> None:
        """Generate new data, and fill the receive buffer with -1, which no collective produces."""
        self._iteration = iteration
        self.got.fill_(-1.0)
        for place in parts(self.sent):
            self.sent[place[0] : place[-1] + 1] = place % PERIOD * weight(self.rank) + iteration

    def run(self) -> None:
        """Run the collective. On CPUs, the call is synchronous. With CUDA, the caller must synchronize."""
        import torch.distributed as dist

        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: dist.all_reduce(self.got),
            "broadcast": lambda: dist.broadcast(self.got, self.root),
            "all_gather": self._all_gather,
            "reduce_scatter": self._reduce_scatter,
            "all_to_all": lambda: dist.all_to_all_single(self.got, self.sent),
            "send_recv": self._ring,
        }
        calls[self.name]()

    @property
    def root(self) -> int:
        """Return the rank that broadcasts in this iteration. The rank changes with each iteration."""
        return self._iteration % self.ranks

    def expected(self, place: Any) -> Any:
        """Return the correct int64 values for the indices `place` in this rank's receive buffer."""
        sums, own = total_weight(self.ranks), self.rank * self.each
        if self.name == "all_reduce":
            return place % PERIOD * sums + self._iteration * self.ranks
        if self.name == "reduce_scatter":
            return (place + own) % PERIOD * sums + self._iteration * self.ranks
        if self.name == "broadcast":
            return place % PERIOD * weight(self.root) + self._iteration
        if self.name == "send_recv":
            return place % PERIOD * weight((self.rank - 1) % self.ranks) + self._iteration
        sender, at = place // self.each, place % self.each
        if self.name == "all_to_all":
            at = at + own
        return at % PERIOD * (sender % WEIGHTS + 1) + self._iteration

    def wrong(self) -> int:
        """Return the number of received elements that are wrong."""
        return sum(
            int((self.got[place[0] : place[-1] + 1] != self.expected(place)).sum())
            for place in parts(self.got)
        )

    def _supports(self, run: Callable[[], object]) -> bool:
        """Run a collective, and return whether the backend supports it.

        Not every gloo version has all collectives.
        """
        if self.built:
            return False
        try:
            run()
        except (RuntimeError, NotImplementedError) as error:
            if "support" not in str(error) and "implement" not in str(error):
                raise
            self.built = True
        return not self.built

    def _all_gather(self) -> None:
        import torch.distributed as dist

        if not self._supports(lambda: dist.all_gather_into_tensor(self.got, self.sent)):
            dist.all_gather(list(self.got.chunk(self.ranks)), self.sent)

    def _reduce_scatter(self) -> None:
        import torch
        import torch.distributed as dist

        if self._supports(lambda: dist.reduce_scatter_tensor(self.got, self.sent)):
            return
        shares = torch.empty_like(self.sent)
        dist.all_to_all_single(shares, self.sent)
        self.got.copy_(shares.view(self.ranks, self.each).sum(0))

    def _ring(self) -> None:
        """Send data to the next rank, and receive data from the previous rank."""
        import torch.distributed as dist

        if self.ranks == 1:
            self.got.copy_(self.sent)
            return
        next_rank, previous_rank = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        operations = [
            dist.P2POp(dist.isend, self.sent, next_rank),
            dist.P2POp(dist.irecv, self.got, previous_rank),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
