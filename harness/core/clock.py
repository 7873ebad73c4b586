"""A clock for timestamps, durations and sleeping. Tests pass in a fake clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def _utc() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Clock:
    """A source of time and sleep. By default, it uses this machine's clock. Tests replace its functions."""

    utc: Callable[[], datetime] = _utc
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def now(self) -> str:
        """Return the current UTC time in RFC 3339 format with microseconds: 2026-01-02T03:04:05.000006Z."""
        return self.utc().isoformat(timespec="microseconds").replace("+00:00", "Z")

    def stamp(self) -> str:
        """Return the current UTC time in a format for directory names: 20260102T030405Z."""
        return f"{self.utc():%Y%m%dT%H%M%SZ}"


CLOCK = Clock()
"""The clock of this machine."""


def seconds(text: object) -> float | None:
    """Convert an RFC 3339 time to seconds since the epoch. Returns None if it is not a valid time."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo else None


def timestamp(at: float) -> str:
    """Format seconds since the epoch as an RFC 3339 time in whole seconds: 2026-01-02T03:04:05Z."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now() -> str:
    """Return the current UTC time in RFC 3339 format with microseconds.

    All times in a bundle have this format.
    """
    return CLOCK.now()
