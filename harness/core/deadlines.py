"""Ordered deadlines: the inner one always ends first, and so can say why.

    netcheck < rendezvous < rank < job (Kueue's max execution time) < harness wait < test timeout

All are seconds. Each launch has one `Budget`. The ranks get theirs as HARNESS_RENDEZVOUS_SECONDS,
HARNESS_RANK_SECONDS and HARNESS_STALL_SECONDS (between two signs of progress). The job file's
maxRunDurationSeconds is lowered to `job`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from harness.core.errors import UsageError

MIN_WAIT = 60.0


@dataclass(frozen=True)
class Budget:
    """The deadlines of one launch, derived from how long the harness may wait for it."""

    wait: float

    def __post_init__(self) -> None:
        if self.wait < MIN_WAIT:
            raise UsageError(
                f"the wait of a launch is {self.wait:g} s; at least {MIN_WAIT:g} s are needed",
                hint="raise --wait or HARNESS_WAIT_SECONDS: the deadlines inside it need head-room",
            )

    @property
    def job(self) -> float:
        """Leave 45 s or a quarter: pods get 30 s of grace, and the harness must still see them end."""
        return self.wait - min(45.0, self.wait / 4)

    @property
    def rank(self) -> float:
        return self.job * 0.85

    @property
    def rendezvous(self) -> float:
        return min(120.0, self.rank * 0.6)

    @property
    def netcheck(self) -> float:
        """How long netcheck waits for a rank that does not come. It ends before the ranks' own rendezvous."""
        return min(60.0, self.rendezvous / 2)

    @property
    def stall(self) -> float:
        """How long a rank may go without progress: two thirds of the time that its peers wait for it."""
        return min(60.0, self.rank * 0.4)

    @property
    def admission(self) -> float:
        """A job that waits longer for quota has no time left to run."""
        return self.wait * 0.6

    def test(self, provision: float) -> float:
        """Return a test's own timeout: the wait, `provision` seconds of set-up, and time to collect."""
        return self.wait + provision + 120


@dataclass(frozen=True)
class Deadline:
    """A moment on the monotonic clock."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    @property
    def left(self) -> float:
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        return self.left == 0.0
