"""Do things at once: two long ones, where a failure of one ends the programs of the other, or many short."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from harness.core import processes

T = TypeVar("T")
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
