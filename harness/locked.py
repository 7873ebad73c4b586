"""Locks on files: one holder, or many that share; released by the kernel when a holder ends, however it ends.

A program that a holder runs inherits what is locked: what it still does after its holder was killed, it does
under the same lock.
"""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

changing = threading.Lock()
"""Held while a program is started: none of the descriptors it inherits may be closed meanwhile."""
_held: set[IO[str]] = set()


class Hold:
    """A lock that is held until `release`, or until this process and the programs that it ran have ended."""

    def __init__(self, handle: IO[str]) -> None:
        self._handle = handle
        _held.add(handle)

    def release(self) -> None:
        """Also of programs that inherited it. Releasing twice is fine."""
        with changing:
            if self._handle in _held:
                _held.remove(self._handle)
                fcntl.flock(self._handle, fcntl.LOCK_UN)
                self._handle.close()


def take(path: Path, *, shared: bool = False, waiting: Callable[[], None] = lambda: None) -> Hold:
    """Lock `path`, which is created when missing and never removed here.

    `waiting` is called once when another holds it, before this one blocks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    handle = path.open("a")
    try:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, kind)
    except BaseException:
        handle.close()
        raise
    return Hold(handle)


@contextmanager
def locked(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """The block is the only one that holds `path`."""
    hold = take(path, waiting=waiting)
    try:
        yield
    finally:
        hold.release()


def in_use(path: Path) -> bool:
    """Whether anybody holds a lock on `path`, this process too."""
    try:
        with path.open() as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def inherited() -> tuple[int, ...]:
    """Descriptors of every lock that this process holds."""
    return tuple(handle.fileno() for handle in _held)
