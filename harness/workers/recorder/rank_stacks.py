"""Record the stack of each rank's main thread when the rank receives SIGTERM.

After a rank has failed, torchrun or the kubelet sends SIGTERM to the ranks that are still running. A rank
that is waiting in C code, such as a collective operation, cannot run a Python signal handler. Therefore,
faulthandler writes the rank's stack into a memory file that belongs to torchrun's agent and outlives the
rank. The agent records the stack (process_events.py). Only ranks started by torchrun have such a file.

The program's own handlers run as before, because faulthandler calls them. faulthandler writes the stack of
only one thread, because the other threads keep running while it writes. This is the main thread: Linux
delivers a process's signals to the main thread unless that thread blocks them. If the program itself
registers faulthandler for SIGTERM, nothing is recorded. This module uses only the standard library, and
supports Python 3.9 and later.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import re
import signal
import threading
from collections.abc import Iterable
from typing import Any

FILES = "HARNESS_STACKS"
"""Environment variable with the agent's memory files, in local rank order: "<agent pid>:<descriptor>,…"."""
MAX_TEXT = 1800
"""Maximum length of a recorded stack in characters, so that it fits into a frame."""
MAX_DUMP = 100_000
"""Maximum number of bytes to read from a memory file."""
_HEADER = re.compile(r"^Stack \(most recent call first\):$", re.MULTILINE)
_OF_A_THREAD = re.compile(r'/threading\.py", line \d+ in _bootstrap$')
_lock = threading.Lock()
_files: dict[int, int] = {}
"""Maps each local rank to the file descriptor of the agent's memory file."""


# -- in torchrun's agent -------------------------------------------------------------------------------------
def provide(local_ranks: Iterable[int]) -> None:
    """Create a memory file for each local rank. The ranks that are started next open these files."""
    with _lock:
        for descriptor in _files.values():
            with contextlib.suppress(OSError):
                os.close(descriptor)
        _files.clear()
        os.environ.pop(FILES, None)
        for local in sorted(local_ranks):
            _files[local] = os.memfd_create(f"harness-stack-{local}")
        numbers = ",".join(str(_files.get(local, "")) for local in range(max(_files, default=-1) + 1))
        os.environ[FILES] = f"{os.getpid()}:{numbers}"


def taken() -> list[tuple[int, str]]:
    """Return the local ranks that received SIGTERM, with their stacks. Each stack is returned once."""
    stacks = []
    with _lock:
        for local, descriptor in list(_files.items()):
            with contextlib.suppress(OSError):
                text = first_stack(os.pread(descriptor, MAX_DUMP, 0).decode(errors="replace"))
                if text:
                    stacks.append((local, text))
                    os.close(_files.pop(local))
    return stacks


def first_stack(dump: str) -> str:
    """Return the first complete stack in a dump, shortened to its innermost frames, or "".

    Later stacks, written after a second SIGTERM, may show the program's own handler. Stacks of threads other
    than the main thread are ignored.
    """
    parts = _HEADER.split(dump)
    text = parts[1].strip("\n") if len(parts) > 1 else ""
    if not text or not (dump.endswith("\n") or len(parts) > 2) or _OF_A_THREAD.search(text):
        return ""
    if len(text) > MAX_TEXT:
        text = text[:MAX_TEXT].rpartition("\n")[0]
    return f"Stack (most recent call first):\n{text}"


# -- in a rank -----------------------------------------------------------------------------------------------
def register() -> None:
    """Write the stack to the rank's memory file on SIGTERM, before the program's own handler runs."""
    agent, _, numbers = os.environ.get(FILES, "").partition(":")
    descriptors = dict(enumerate(numbers.split(",")))
    descriptor = descriptors.get(int(os.environ.get("LOCAL_RANK", "-1")), "")
    if int(agent or 0) != os.getppid() or not descriptor:
        return
    file = os.open(f"/proc/{agent}/fd/{descriptor}", os.O_WRONLY | os.O_APPEND)
    own = _Registration(file)
    own.begin()
    own.stay()


class _Registration:
    """The registration of faulthandler for SIGTERM, whose handler must always be the last one installed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._process = descriptor, os.getpid()
        self._register: Any = faulthandler.register
        self._replaced = False
        """Whether the handler has been removed. It is removed if the program replaces the registration, and
        in forks of the rank."""
        self._masks = threading.local()
        """Thread-local data. `before` is the thread's signal mask before its current fork."""

    def begin(self) -> None:
        self._register(signal.SIGTERM, file=self._descriptor, all_threads=False, chain=True)
        # A DataLoader terminates its forked workers with SIGTERM, and their stacks must not be recorded.
        # Therefore, SIGTERM is blocked until the child has removed the handler.
        os.register_at_fork(before=self._block, after_in_parent=self._unblock, after_in_child=self._forked)

    def stay(self) -> None:
        """Reinstall this handler whenever the program installs another one."""
        install: Any = signal.signal

        @functools.wraps(install)
        def install_below(number: int, handler: Any) -> Any:
            if number != signal.SIGTERM or not self._active():
                return install(number, handler)
            # faulthandler calls the handler that it replaced, so faulthandler must be registered again.
            faulthandler.unregister(signal.SIGTERM)
            try:
                return install(number, handler)
            finally:
                self._register(signal.SIGTERM, file=self._descriptor, all_threads=False, chain=True)

        @functools.wraps(self._register)
        def register_theirs(number: int, *arguments: Any, **options: Any) -> Any:
            if number == signal.SIGTERM and self._active():
                self._end()
            return self._register(number, *arguments, **options)

        modules: Any = (signal, faulthandler)
        modules[0].signal, modules[1].register = install_below, register_theirs

    def _block(self) -> None:
        self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.before)

    def _forked(self) -> None:
        self._end()
        self._unblock()

    def _active(self) -> bool:
        return not self._replaced and self._process == os.getpid()

    def _end(self) -> None:
        if not self._replaced:
            self._replaced = True
            faulthandler.unregister(signal.SIGTERM)
