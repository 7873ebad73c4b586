"""Run functions in threads.

`in_background` runs one function during a `with` block, `run_all` runs several short functions, and `within`
calls functions that may hang.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Thread
from typing import TypeVar

from harness.core import processes
from harness.core.deadlines import Deadline

T = TypeVar("T")
K = TypeVar("K")
AT_ONCE = 6
"""The maximum number of functions that `run_all` runs concurrently. Each function uses its own connection to
the API server."""
_INTERRUPTION = "a concurrent task failed"


@contextmanager
def in_background(function: Callable[[], T]) -> Iterator[Future[T]]:
    """Run `function` in a thread during the block, and wait for it when the block ends.

    If `function` or the block raises, all programs that this process is waiting for are killed. The error
    that occurred first is raised.
    """

    def guarded() -> T:
        try:
            return function()
        except BaseException:
            processes.interrupt_all(_INTERRUPTION)
            raise

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(guarded)
        try:
            yield running
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt) and str(error) == _INTERRUPTION
            if interrupted and (first := running.exception()) is not None:
                raise first from None
            processes.interrupt_all(_INTERRUPTION)
            raise
        running.result()


def run_all(things: Iterable[Callable[[], T]]) -> list[T]:
    """Run short functions concurrently, wait for all of them, and return their results in the given order.

    If several functions raise, the error of the one that comes first in this order is raised.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [running.result() for running in [pool.submit(each) for each in things]]


def within(seconds: float, function: Callable[[K], T], things: Collection[K]) -> dict[K, T]:
    """Call `function` for each of `things` concurrently, and return the results that arrive within `seconds`.

    Use this function for calls that have no timeout of their own. Calls that take longer continue in daemon
    threads, which end with the process.
    """
    results: dict[K, T] = {}

    def call(thing: K) -> None:
        results[thing] = function(thing)

    threads = [Thread(target=call, args=(thing,), daemon=True) for thing in things]
    for thread in threads:
        thread.start()
    deadline = Deadline.after(seconds)
    for thread in threads:
        thread.join(deadline.remaining)
    return dict(results)
