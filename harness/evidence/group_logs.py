"""Read from the log of a pod which ranks were in a process group. No torchrun is needed for these lines.

Newer versions of gloo print a line for each rank of a group that they have connected. NCCL prints one with
NCCL_DEBUG=INFO, and older versions of PyTorch with Python's logging at INFO.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from harness.evidence.torchrun_logs import LoggedRanks

_GLOO = re.compile(
    rb"\[Gloo\] Rank (\d+) is connected to (\d+) peer ranks\. "
    rb"Expected number of connected peer ranks is : (\d+)"
)
_NCCL = re.compile(rb"NCCL INFO (?:\w+ )?comm \S+ rank (\d+) nranks (\d+) [^\n]*Init COMPLETE")
_BARRIER = re.compile(
    rb"Rank (\d+): Completed store-based barrier for key:store_based_barrier_key:1 with (\d+) nodes"
)


def logged(log: Path) -> LoggedRanks | None:
    """Return the ranks of the largest process group in a log, or None if the log shows no group.

    Only a group of the job's size is that of all ranks. In a smaller one, ranks have other numbers.
    """
    try:
        content = log.read_bytes()
    except OSError:
        return None
    groups: dict[int, set[int]] = {}
    for rank, size in _members(content):
        groups.setdefault(size, set()).add(rank)
    if not groups:
        return None
    world = max(groups)
    ranks = tuple(sorted(groups[world]))
    return LoggedRanks(ranks[0] // len(ranks), ranks, world)


def _members(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield the rank and the size of its group for each line about a complete group."""
    for rank, peers, wanted in _GLOO.findall(content):
        if peers == wanted:
            yield int(rank), int(wanted) + 1
    for pattern in (_NCCL, _BARRIER):
        for rank, size in pattern.findall(content):
            yield int(rank), int(size)
