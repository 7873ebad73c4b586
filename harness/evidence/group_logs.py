"""Read from the log of a pod which ranks were in a process group. No torchrun is needed for these lines.

Newer versions of gloo print a line for each rank of a group that they have connected. NCCL prints one with
NCCL_DEBUG=INFO, and older versions of PyTorch with Python's logging at INFO.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from harness.evidence.torchrun_logs import LoggedRanks

_GLOO = re.compile(
    rb"\[Gloo\] Rank (\d{1,18}) is connected to (\d{1,18}) peer ranks\. "
    rb"Expected number of connected peer ranks is : (\d{1,18})\b"
)
_NCCL = re.compile(rb"NCCL INFO (?:\w+ )?comm \S+ rank (\d{1,18}) nranks (\d{1,18}) [^\n]*Init COMPLETE")
_BARRIER = re.compile(
    rb"Rank (\d{1,18}): Completed store-based barrier for key:store_based_barrier_key:1 with (\d{1,18}) nodes"
)


def logged(log: Iterable[bytes]) -> LoggedRanks | None:
    """Return the ranks of the largest process group in a log, or None if the log shows no group.

    Only a group of the job's size is that of all ranks. In a smaller one, ranks have other numbers. `log`
    yields the lines of the log.
    """
    groups: dict[int, set[int]] = {}
    for line in log:
        for rank, size in _members(line):
            groups.setdefault(size, set()).add(rank)
    if not groups:
        return None
    world = max(groups)
    ranks = tuple(sorted(groups[world]))
    return LoggedRanks(ranks[0] // len(ranks), ranks, world)


def _members(line: bytes) -> Iterator[tuple[int, int]]:
    """Yield the rank and the size of its group for each message in a line about a complete group."""
    if b"rank" not in line and b"Rank" not in line:
        return
    for rank, peers, wanted in _GLOO.findall(line):
        if peers == wanted:
            yield int(rank), int(wanted) + 1
    for pattern in (_NCCL, _BARRIER):
        for rank, size in pattern.findall(line):
            yield int(rank), int(size)
