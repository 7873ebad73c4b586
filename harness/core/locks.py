"""Acquire exclusive or shared locks on files and directories.

The kernel releases a lock when all processes that hold it have ended. Child processes inherit the lock, so it
protects their work even after their parent has been killed.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

fork_mutex = threading.Lock()
"""A mutex that is held while a child process is started, so that no other thread closes the file descriptors
of locks that the child is about to inherit."""
_descriptors: set[int] = set()


class LockHandle:
    """A lock on a file or directory.

    It is held until `release` is called, or until this process and all child processes that inherited the
    lock have ended.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        _descriptors.add(descriptor)

    def release(self) -> None:
        """Release the lock, including for child processes that inherited it. A second call does nothing."""
        with fork_mutex:
            if self._descriptor in _descriptors:
                _descriptors.remove(self._descriptor)
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
                os.close(self._descriptor)
                self._descriptor = -1


def acquire(path: Path, *, shared: bool = False, waiting: Callable[[], None] = lambda: None) -> LockHandle:
    """Lock `path`, a directory or a file. A missing file is created.

    If another process holds the lock, `waiting` is called before this process waits for it. If the holder
    removes the file before releasing the lock, a waiting process locks a new file at the same path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    while True:
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(descriptor, kind)
            if _is_same_file(descriptor, path):
                return LockHandle(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_same_file(descriptor: int, path: Path) -> bool:
    """Return whether `path` still refers to the file that is open as `descriptor`."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextmanager
def locked(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Return a context manager that holds an exclusive lock on `path` during its block."""
    handle = acquire(path, waiting=waiting)
    try:
        yield
    finally:
        handle.release()


def in_use(path: Path) -> bool:
    """Return whether any process, including this one, holds a lock on `path`."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def inherited() -> tuple[int, ...]:
    """Return the file descriptors of all locks that this process holds, so that child processes can inherit
    them."""
    return tuple(_descriptors)
