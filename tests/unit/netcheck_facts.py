"""What a healthy rank says of its surroundings (harness/workers/netcheck/surroundings.py)."""

from __future__ import annotations

from typing import Any

FACTS: dict[str, Any] = {
    "python": "3.13.1",
    "torch": "2.9.1",
    "nccl": "",
    "shm": 1 << 30,
    "memlock": -1,
    "infiniband": [],
}
