"""Do things at once: two long ones, where a failure of one ends the programs of the other, many short ones,
or some that may never end.
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
"""How many run at the same time. Each needs a connection to the API server."""
_WHY = "what ran beside it failed"


@contextmanager
def beside(what: Callable[[], T]) -> Iterator[Future[T]]:
    """Run `what` in a thread during the block, whose end waits for it.

    Raises what failed first: `what`, or the block.
    """

    def guarded() -> T:
        try:
            return what()
        except BaseException:
            processes.interrupt_all(_WHY)
            raise

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(guarded)
        try:
            yield running
        except BaseException as error:
            ended = isinstance(error, KeyboardInterrupt) and str(error) == _WHY
            if ended and (first := running.exception()) is not None:
                raise first from None
            processes.interrupt_all(_WHY)
            raise
        running.result()


def together(things: Iterable[Callable[[], T]]) -> list[T]:
    """Return what each short thing returns, in their order, when all have ended.

    Raises what the first of them in this order raised.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [running.result() for running in [pool.submit(each) for each in things]]


def within(seconds: float, what: Callable[[K], T], things: Collection[K]) -> dict[K, T]:
    """Return what `what` returned for each thing, where it did so in time. All run at once.

    It is for calls that have no timeout: those that are late are left behind, in threads that die with the
    process.
    """
    found: dict[K, T] = {}

    def one(thing: K) -> None:
        found[thing] = what(thing)

    threads = [Thread(target=one, args=(thing,), daemon=True) for thing in things]
    for thread in threads:
        thread.start()
    deadline = Deadline.after(seconds)
    for thread in threads:
        thread.join(deadline.left)
    return dict(found)
