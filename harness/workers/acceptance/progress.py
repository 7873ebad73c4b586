"""Know where every rank is, so that a hang ends and has a name.

Each rank writes its position into the job's store, from a thread of its own, twice a second. A rank whose
main thread hangs goes on to write the same position; one that died or was stopped writes nothing more.
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

from .older import store_without_libuv

BEAT_SECONDS = 0.5
GONE_SECONDS = 3.0
"""Seconds without a beat after which a rank is gone."""


@dataclass(frozen=True)
class Position:
    """Where a rank is. `step` counts collectives and their iterations, alike on all ranks."""

    step: int = 0
    doing: str = "the start"
    inside: bool = False
    beat: int = 0
    error: str = ""
    where: str = ""
    """The innermost Python function of the main thread."""


@dataclass(frozen=True)
class Diagnosis:
    """Which ranks keep the others waiting, and why one thinks so."""

    cause: str
    """collective.hung or collective.failed."""
    ranks: tuple[int, ...]
    text: str


def diagnose(before: Mapping[int, Position], now: Mapping[int, Position], ranks: int) -> Diagnosis:
    """Say who is to blame, from two looks at all positions that lie GONE_SECONDS apart.

    A rank that is gone comes first, then one that is behind the others: they wait for it.
    """
    gone = tuple(r for r in range(ranks) if r not in now or (r in before and before[r].beat == now[r].beat))
    here = {rank: position for rank, position in now.items() if rank not in gone}
    furthest = max(here.values(), key=lambda p: (p.step, p.inside), default=Position())
    if gone:
        return Diagnosis(
            "collective.failed", gone, f"{listed(gone)} gave no sign of life in {furthest.doing}"
        )
    behind = tuple(
        r for r, p in sorted(here.items()) if (p.step, p.inside) < (furthest.step, furthest.inside)
    )
    failed = {rank: position.error for rank, position in here.items() if position.error}
    if behind:
        return Diagnosis(
            "collective.hung",
            behind,
            f"{listed(behind)} never entered {furthest.doing}, where the others wait",
        )
    if not failed and (apart := _elsewhere(here)):
        text = f"{listed(apart)} is at {here[apart[0]].where} in {furthest.doing}, and the others wait there"
        return Diagnosis("collective.hung", apart, text)
    if failed:
        rank, error = next(iter(sorted(failed.items())))
        return Diagnosis("collective.failed", (), f"{furthest.doing} failed: rank {rank}: {error}")
    return Diagnosis("collective.hung", (), f"no rank came out of {furthest.doing}, which all have entered")


def _elsewhere(here: Mapping[int, Position]) -> tuple[int, ...]:
    """Return the ranks whose main thread is elsewhere than that of most: all have entered, and these do not
    exchange. Without a clear majority nobody is accused.
    """
    count = Counter(position.where for position in here.values())
    usual, most = count.most_common(1)[0]
    if most * 2 <= len(here):
        return ()
    return tuple(rank for rank, position in sorted(here.items()) if position.where != usual)


def listed(ranks: tuple[int, ...]) -> str:
    """Return "rank 2" or "ranks 0, 1"."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


class Watch:
    """The thread of one rank. `hung` is called once, from it, when nothing has moved for too long."""

    def __init__(self, rank: int, ranks: int, seconds: float, hung: Callable[[], None]) -> None:
        self._rank, self._ranks, self._seconds, self._hung = rank, ranks, seconds, hung
        self._store = _client()
        self._position, self._moved = Position(), time.monotonic()
        self._over = threading.Event()
        self._main = threading.main_thread().ident or 0
        self._thread = threading.Thread(target=self._beat, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def enter(self, doing: str) -> None:
        """Say that this rank is about to exchange."""
        self._move(Position(self._position.step + 1, doing, True, self._position.beat))

    def leave(self) -> None:
        """Say that it came out."""
        self._move(Position(self._position.step, self._position.doing, False, self._position.beat))

    def failed(self, error: str) -> None:
        """Say that its main thread has ended with an error."""
        here = self._position
        self._move(Position(here.step, here.doing, here.inside, here.beat, error))

    def _move(self, position: Position) -> None:
        self._position, self._moved = position, time.monotonic()

    def stop(self) -> None:
        self._over.set()

    def positions(self) -> dict[int, Position]:
        """Return where the ranks are, as far as they ever said. Raises what the store raises."""
        found = {}
        for rank in range(self._ranks):
            key = f"accept/at/{rank}"
            if self._is_set(key):
                found[rank] = Position(**json.loads(self._store.get(key)))
        return found

    def _set(self, key: str, said: Any) -> None:
        """Set a key of the store, and count that it was set."""
        self._store.set(key, json.dumps(said))
        self._store.add(f"{key}/times", 1)

    def _is_set(self, key: str) -> bool:
        """Return whether `_set` was called for a key. `check` of a store came with PyTorch 2.3."""
        return int(self._store.add(f"{key}/times", 0)) > 0

    def tell(self, name: str, said: Any) -> None:
        """Leave something for the others to read."""
        self._set(f"accept/{name}", said)

    def told(self, name: str, seconds: float) -> Any:
        """Return what somebody left, or None when it did not come in time."""
        until, key = time.monotonic() + seconds, f"accept/{name}"
        while time.monotonic() < until:
            with suppress(RuntimeError):
                if self._is_set(key):
                    return json.loads(self._store.get(key))
            time.sleep(0.05)
        return None

    def _beat(self) -> None:
        beats = 0
        while not self._over.wait(BEAT_SECONDS):
            beats += 1
            here = self._position
            said = asdict(replace(here, beat=beats, where=self._where()))
            with suppress(RuntimeError):  # Without the store nobody reads it. The hang is seen all the same.
                self._set(f"accept/at/{self._rank}", said)
            if time.monotonic() - self._moved > self._seconds:
                threading.Thread(target=self._hung, name="hung", daemon=True).start()
                self._moved = float("inf")

    def _where(self) -> str:
        """Return the function that the main thread is in, with its file."""
        frame = sys._current_frames().get(self._main)
        code = frame.f_code if frame else None
        return f"{code.co_name} ({os.path.basename(code.co_filename)})" if code else ""


def _client() -> Any:
    """Return a connection of our own to the job's store: the main thread's may be blocked in a call."""
    import torch.distributed as dist

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(
        host, port, None, False, timedelta(seconds=30), wait_for_workers=False, **store_without_libuv()
    )
