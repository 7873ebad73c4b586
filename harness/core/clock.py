"""The time of day as evidence writes it, time to measure by, and waiting: one clock, passed in for tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def _utc() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Clock:
    """The machine's; a test passes another one in."""

    utc: Callable[[], datetime] = _utc
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def now(self) -> str:
        """RFC 3339, UTC, microseconds: 2026-01-02T03:04:05.000006Z."""
        return self.utc().isoformat(timespec="microseconds").replace("+00:00", "Z")

    def stamp(self) -> str:
        """For the name of a folder, to the second: 20260102T030405Z."""
        return f"{self.utc():%Y%m%dT%H%M%SZ}"


CLOCK = Clock()
"""Of this machine."""


def seconds(text: object) -> float | None:
    """Return the seconds since the epoch of an RFC 3339 time, or None for any other text."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo else None


def timestamp(at: float) -> str:
    """Return seconds since the epoch as the bundle writes a time, to the second: 2026-01-02T03:04:05Z."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now() -> str:
    """The time as the bundle writes it: RFC 3339, UTC, microseconds."""
    return CLOCK.now()
