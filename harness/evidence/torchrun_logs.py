"""Find out from torchrun's log which ranks run in a pod. torchrun logs them if LOGLEVEL is INFO."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from harness.core.input_limits import bounded_int

_WORLD = re.compile(r"\bglobal_world_sizes=\[(\d{1,18})\b")
_GLOBAL = re.compile(r"\bglobal_ranks=\[([\d, ]*)\]")
_GROUP = re.compile(r"\bgroup_rank=(\d{1,18})\b")


@dataclass(frozen=True)
class LoggedRanks:
    """The ranks of a pod, as logged by torchrun after its rendezvous or when a process group was formed."""

    group_rank: int
    ranks: tuple[int, ...]
    world: int


def logged(log: Iterable[bytes]) -> LoggedRanks | None:
    """Return the pod's ranks in the last rendezvous that torchrun logged, or None if no rendezvous was
    logged.

    `log` yields the lines of the log.
    """
    group, ranks, world = None, None, None
    for part in log:
        if b"group_" not in part and b"global_" not in part:
            continue
        for line in part.decode(errors="replace").splitlines():
            if match := _GROUP.search(line):
                group = int(match[1])
            if match := _GLOBAL.search(line):
                words = (word.strip() for word in match[1].split(","))
                ranks = tuple(bounded_int(word) for word in words if word.isdecimal())
            if match := _WORLD.search(line):
                world = int(match[1])
    if group is None or world is None or not ranks:
        return None
    return LoggedRanks(group, ranks, world)
