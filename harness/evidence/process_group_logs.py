"""Find out from a pod's log which ranks formed a process group.

The messages come from gloo, NCCL and PyTorch, so they appear even if the job does not use torchrun. For each
rank that has connected to all other ranks of its group, newer versions of gloo print a line. NCCL does so
with NCCL_DEBUG=INFO, and older versions of PyTorch do so if Python's logging level is INFO.
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

    The result contains the job's global ranks only if the group has as many ranks as the job. In a smaller
    group, the ranks are numbered differently. `log` yields the lines of the log.
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
    """Yield (rank, size of its group) for each message in a line that reports a fully connected group."""
    if b"rank" not in line and b"Rank" not in line:
        return
    for rank, peers, expected_peers in _GLOO.findall(line):
        if peers == expected_peers:
            yield int(rank), int(expected_peers) + 1
    for pattern in (_NCCL, _BARRIER):
        for rank, size in pattern.findall(line):
            yield int(rank), int(size)
