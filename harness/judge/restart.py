"""One restart of ranks, as the check `restarts` and the report tell it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime


@dataclass(frozen=True)
class Restart:
    """A restart of one node's ranks or of all ranks. `at` is in seconds since the epoch."""

    at: float
    ranks: list[int]
    text: str
    allowed: bool
    evidence: list[str] = field(default_factory=list)
    by_script: bool = False
    """Whether the run script started the ranks again, and not torchrun or Kubernetes."""
    resized: bool = False
    """Whether torchrun formed a world of another size, which does not count as one of the job's restarts."""


def clock(at: float) -> str:
    """Return a time as the bundle writes it, to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
