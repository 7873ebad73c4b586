"""Read from torchrun's log which ranks a pod has (LOGLEVEL=INFO)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_WORLD = re.compile(r"\bglobal_world_sizes=\[(\d+)")
_GLOBAL = re.compile(r"\bglobal_ranks=\[([\d, ]*)\]")
_GROUP = re.compile(r"\bgroup_rank=(\d+)")


@dataclass(frozen=True)
class LoggedRanks:
    """The ranks of a pod as torchrun logged them at the end of its rendezvous (LOGLEVEL=INFO)."""

    group_rank: int
    ranks: tuple[int, ...]
    world: int


def logged(log: Path) -> LoggedRanks | None:
    """Return the ranks in the last rendezvous that torchrun logged, or None if it logged none."""
    try:
        content = log.read_bytes()
    except OSError:
        return None
    if b"global_world_sizes=[" not in content:
        return None
    group, ranks, world = None, None, None
    for line in content.decode(errors="replace").splitlines():
        if found := _GROUP.search(line):
            group = int(found[1])
        if found := _GLOBAL.search(line):
            ranks = tuple(int(word) for word in found[1].split(",") if word.strip())
        if found := _WORLD.search(line):
            world = int(found[1])
    if group is None or world is None or not ranks:
        return None
    return LoggedRanks(group, ranks, world)
