"""Reports of a job in which all is well (harness/workers/netcheck/report.py)."""

from __future__ import annotations

from typing import Any

from harness.workers.netcheck.finding import ok
from harness.workers.netcheck.probe import Cell
from harness.workers.netcheck.rank_report import Report

FACTS: dict[str, Any] = {
    "python": "3.13.1",
    "torch": "2.9.1",
    "nccl": "",
    "shm": 1 << 30,
    "memlock": -1,
    "infiniband": [],
}
"""What a healthy rank says of its surroundings (harness/workers/netcheck/surroundings.py)."""


def address(rank: int) -> str:
    return f"10.0.0.{rank + 1}"


def fine(rank: int) -> Cell:
    return Cell(
        "ok", f"job-{rank}", address=address(rank), rank=rank, instance=f"i{rank}", run="r", rtt=0.001
    )


def healthy(size: int = 4) -> dict[int, Report]:
    """Reports of a job in which all is well, by rank."""
    own = (ok("variables", "fine"), ok("interface", "fine"))
    return {
        rank: Report(
            rank,
            rank,
            f"job-{rank}",
            f"i{rank}",
            (address(rank),),
            {other: fine(other) for other in range(size)},
            own,
            FACTS,
        )
        for rank in range(size)
    }
