"""Measure how long this process waits for a CPU, because a slow process looks like a broken network.

A thread repeatedly sleeps for a short time, and records how late it wakes up. Such delays occur if other
processes use the node's CPUs, if the container reaches its CPU limit, or if it is paused. If the kernel
provides metrics about this, the text names the reason.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

STEP = 0.05
"""The duration of each sleep of the thread, in seconds."""
WINDOW = 10.0
"""Only delays within the last WINDOW seconds are reported."""
PRESSURE, LIMIT = "/proc/pressure/cpu", "/sys/fs/cgroup/cpu.stat"


@dataclass(frozen=True)
class Delay:
    """The delays of a rank's process during the last WINDOW seconds.

    `late` is the longest wake-up delay in seconds. `waiting` is the fraction of time, from 0 to 1, during
    which at least one process on the node waited for a CPU (pressure stall information). `throttled` is the
    fraction of time during which the kernel stopped the container's processes because of its CPU limit. Both
    fractions are 0 if the kernel does not report them.
    """

    late: float = 0.0
    waiting: float = 0.0
    throttled: float = 0.0

    @property
    def text(self) -> str:
        """A description of the delay, for use as the predicate of a sentence about the process."""
        text = f"woke up {self.late:.1f} s late"
        if self.throttled >= 0.01:
            text += f", and its CPU limit throttled it {self.throttled:.0%} of the time"
        elif self.waiting >= 0.01:
            text += f", and processes on its node waited for a CPU {self.waiting:.0%} of the time"
        return text

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class CpuDelay:
    """Measures this process's delays in a background thread until `stop` is set."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._delays: deque[tuple[float, float]] = deque([(time.monotonic(), 0.0)])
        """The wake-up time and delay of each sleep in the window."""
        self._totals = deque([(time.monotonic(), *_totals())])
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> CpuDelay:
        self._thread.start()
        return self

    def _run(self) -> None:
        before = time.monotonic()
        while not self._stop.wait(STEP):
            now = time.monotonic()
            self._delays.append((now, max(0.0, now - before - STEP)))
            if now - self._totals[-1][0] >= 1:
                self._totals.append((now, *_totals()))
            for samples in (self._delays, self._totals):
                while len(samples) > 1 and now - samples[0][0] > WINDOW:
                    samples.popleft()
            before = now

    def now(self) -> Delay:
        """Return the delays of the last WINDOW seconds, including a delay that has not ended yet."""
        now, samples, first = time.monotonic(), list(self._delays), self._totals[0]
        delay_seconds = max([delay for _, delay in samples] + [now - samples[-1][0] - STEP])
        at, waiting, throttled = self._totals[-1]
        elapsed = max(at - first[0], 1.0)
        shares = (max(0.0, waiting - first[1]) / elapsed, max(0.0, throttled - first[2]) / elapsed)
        return Delay(round(max(0.0, delay_seconds), 3), *(round(min(1.0, share), 3) for share in shares))

    def since(self, start: float) -> float:
        """Return the total delay of this process in seconds since the monotonic time `start`."""
        now, samples = time.monotonic(), list(self._delays)
        delays = sum(min(delay, at - start) for at, delay in samples if at > start)
        return delays + max(0.0, min(now - samples[-1][0] - STEP, now - start))


def _totals() -> tuple[float, float]:
    """Return the total waiting time and the total throttled time in seconds.

    The waiting time is how long at least one process on the node waited for a CPU. The throttled time is the
    container's.
    """
    waiting = throttled = 0.0
    for line in _lines(PRESSURE):
        if line.startswith("some "):
            waiting = int(line.rpartition("total=")[2]) / 1e6
    for line in _lines(LIMIT):
        if line.startswith("throttled_usec "):
            throttled = int(line.split()[1]) / 1e6
    return waiting, throttled


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
