"""Nested deadlines. The innermost deadline expires first, so that its owner can report the reason.

    netcheck < rendezvous < rank < job (Kueue's max execution time) < harness wait < test timeout

All deadlines are in seconds. Each launch has one `Budget`. The ranks' deadlines are passed to them in the
variables HARNESS_RENDEZVOUS_SECONDS, HARNESS_RANK_SECONDS and HARNESS_STALL_SECONDS (maximum time without
progress). The job file's maxRunDurationSeconds is lowered to `job`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from harness.core.errors import UsageError

MIN_WAIT = 60.0


@dataclass(frozen=True)
class Budget:
    """The deadlines for one launch, derived from the maximum time that the harness waits for it."""

    wait: float

    def __post_init__(self) -> None:
        if self.wait < MIN_WAIT:
            raise UsageError(
                f"--wait: expected at least {MIN_WAIT:g} s, found {self.wait:g} s",
                hint="raise --wait or HARNESS_WAIT_SECONDS: the deadlines of the launch's parts must fit "
                "into this time",
            )

    @property
    def job(self) -> float:
        """Return the maximum duration of the job in seconds: `wait`, reduced by 45 s or by a quarter of
        `wait`, whichever is less.

        The reduction leaves time for the pods' grace period of 30 s, and for the harness to observe that the
        pods have ended.
        """
        return self.wait - min(45.0, self.wait / 4)

    @property
    def rank(self) -> float:
        return self.job * 0.85

    @property
    def rendezvous(self) -> float:
        return min(120.0, self.rank * 0.6)

    @property
    def netcheck(self) -> float:
        """Return the number of seconds that netcheck waits for missing ranks, which is less than
        `rendezvous`."""
        return min(60.0, self.rendezvous / 2)

    @property
    def stall(self) -> float:
        """Return the maximum number of seconds for which a rank may run without making progress."""
        return min(60.0, self.rank * 0.4)

    @property
    def admission(self) -> float:
        """Return the maximum number of seconds that a job may wait for quota.

        A job that waited longer would have no time left to run.
        """
        return self.wait * 0.6

    def test(self, provision: float) -> float:
        """Return a test's timeout in seconds. It includes the wait, `provision` seconds for setup, and time
        to collect evidence."""
        return self.wait + provision + 120


@dataclass(frozen=True)
class Deadline:
    """A point in time on the monotonic clock."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    @property
    def remaining(self) -> float:
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        return self.remaining == 0.0
