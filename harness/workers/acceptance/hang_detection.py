"""Track the progress of every rank, in order to end hangs and to identify the rank that causes a hang.

A thread in each rank writes the rank's position and a heartbeat counter to the job's store twice a second. If
the main thread hangs, the position no longer changes. If the process is dead or stopped, the heartbeat stops.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from .compat import store_without_libuv

BEAT_SECONDS = 0.5
GONE_SECONDS = 3.0
"""A rank counts as gone (dead or stopped) if it has sent no heartbeat for this many seconds."""


@dataclass(frozen=True)
class Position:
    """A rank's progress.

    `step` counts the exchanges that the rank has entered. Each iteration of a test is one exchange.
    """

    step: int = 0
    doing: str = "the start"
    inside: bool = False
    beat: int = 0
    error: str = ""
    where: str = ""
    """The Python function that the main thread is executing, with the name of its file."""


@dataclass(frozen=True)
class Diagnosis:
    """The ranks that are to blame for a hang or a failure, and the explanation."""

    cause: str
    """The identifier of the cause: collective.hung or collective.failed."""
    ranks: tuple[int, ...]
    text: str


def diagnose(before: Mapping[int, Position], now: Mapping[int, Position], ranks: int) -> Diagnosis:
    """Return a diagnosis that blames the ranks responsible for a hang or a failure.

    `before` and `now` contain the positions of all ranks, read GONE_SECONDS seconds apart. If ranks are gone,
    they are blamed. Otherwise, the ranks that are behind are blamed, because the others are waiting for them.
    """
    gone_ranks = tuple(
        r for r in range(ranks) if r not in now or (r in before and before[r].beat == now[r].beat)
    )
    positions = {rank: position for rank, position in now.items() if rank not in gone_ranks}
    furthest = max(positions.values(), key=lambda p: (p.step, p.inside), default=Position())
    if gone_ranks:
        return Diagnosis(
            "collective.failed", gone_ranks, f"{listed(gone_ranks)} sent no heartbeat during {furthest.doing}"
        )
    late_ranks = tuple(
        r for r, p in sorted(positions.items()) if (p.step, p.inside) < (furthest.step, furthest.inside)
    )
    failed = {rank: position.error for rank, position in positions.items() if position.error}
    if late_ranks:
        return Diagnosis(
            "collective.hung",
            late_ranks,
            f"{listed(late_ranks)} never entered {furthest.doing}, where the others are waiting",
        )
    if not failed and (apart := _elsewhere(positions)):
        place = positions[apart[0]].where
        text = f"{listed(apart)} remained in {place}, but the others are waiting in {furthest.doing}"
        return Diagnosis("collective.hung", apart, text)
    if failed:
        rank, error = next(iter(sorted(failed.items())))
        return Diagnosis("collective.failed", (), f"{furthest.doing} failed: rank {rank}: {error}")
    return Diagnosis("collective.hung", (), f"all ranks entered {furthest.doing}, but none left it")


def _elsewhere(positions: Mapping[int, Position]) -> tuple[int, ...]:
    """Return the ranks whose main thread is executing a different function than most ranks.

    All ranks have entered the collective, but these ranks do not take part in it. If there is no function
    that most ranks are executing, no ranks are returned.
    """
    places = Counter(position.where for position in positions.values())
    common, frequency = places.most_common(1)[0]
    if frequency * 2 <= len(positions):
        return ()
    return tuple(rank for rank, position in sorted(positions.items()) if position.where != common)


def listed(ranks: tuple[int, ...]) -> str:
    """Return the ranks as text, such as "rank 2" or "ranks 0, 1"."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


class Watch:
    """A thread that watches one rank. It calls `on_hang` once if the rank makes no progress for `seconds`."""

    def __init__(self, rank: int, ranks: int, seconds: float, on_hang: Callable[[], None]) -> None:
        self._rank, self._ranks, self._seconds, self._on_hang = rank, ranks, seconds, on_hang
        self._store = _client()
        self._position, self._moved_at = Position(), time.monotonic()
        self._stop = threading.Event()
        self._main = threading.main_thread().ident or 0
        self._thread = threading.Thread(target=self._beat, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def enter(self, exchange: str) -> None:
        """Record that this rank has entered an exchange."""
        self._move(Position(self._position.step + 1, exchange, True, self._position.beat))

    def leave(self) -> None:
        """Record that this rank has left the exchange."""
        self._move(Position(self._position.step, self._position.doing, False, self._position.beat))

    def failed(self, error: str) -> None:
        """Record that the main thread has failed with an error."""
        position = self._position
        self._move(Position(position.step, position.doing, position.inside, position.beat, error))

    def _move(self, position: Position) -> None:
        self._position, self._moved_at = position, time.monotonic()

    def stop(self) -> None:
        self._stop.set()

    def positions(self) -> dict[int, Position]:
        """Return the positions of the ranks, keyed by rank.

        A rank that has not written a position is omitted. The store's exceptions propagate.
        """
        positions = {}
        for rank in range(self._ranks):
            key = f"accept/at/{rank}"
            if self._is_set(key):
                positions[rank] = Position(**json.loads(self._store.get(key)))
        return positions

    def _set(self, key: str, value: Any) -> None:
        """Set a key in the store, and increment the key's counter. `_is_set` reads this counter."""
        self._store.set(key, json.dumps(value))
        self._store.add(f"{key}/times", 1)

    def _is_set(self, key: str) -> bool:
        """Return whether `_set` has been called for a key.

        The stores' own `check` method exists only since PyTorch 2.3.
        """
        return int(self._store.add(f"{key}/times", 0)) > 0

    def publish(self, name: str, value: Any) -> None:
        """Store a value that the other ranks can read with `wait_for`."""
        self._set(f"accept/{name}", value)

    def wait_for(self, name: str, seconds: float) -> Any:
        """Wait up to `seconds` until a rank stores a value with `publish`.

        Return the value, or None after a timeout.
        """
        deadline, key = time.monotonic() + seconds, f"accept/{name}"
        while time.monotonic() < deadline:
            with suppress(RuntimeError):
                if self._is_set(key):
                    return json.loads(self._store.get(key))
            time.sleep(0.05)
        return None

    def _beat(self) -> None:
        beats = 0
        while not self._stop.wait(BEAT_SECONDS):
            beats += 1
            current = self._position
            position = asdict(replace(current, beat=beats, where=self._where()))
            with suppress(RuntimeError):  # A hang must be detected even if the store is down.
                self._set(f"accept/at/{self._rank}", position)
            if time.monotonic() - self._moved_at > self._seconds:
                threading.Thread(target=self._on_hang, name="hung", daemon=True).start()
                self._moved_at = float("inf")

    def _where(self) -> str:
        """Return the function that the main thread is executing, with the name of its file."""
        frame = sys._current_frames().get(self._main)
        code = frame.f_code if frame else None
        return f"{code.co_name} ({os.path.basename(code.co_filename)})" if code else ""


def _client() -> Any:
    """Return a new connection to the job's store. The existing one may be blocked by a hung main thread."""
    import torch.distributed as dist

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(
        host, port, None, False, timedelta(seconds=30), wait_for_workers=False, **store_without_libuv()
    )
