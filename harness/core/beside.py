"""Do two long things at once. When one fails, the programs of the other are ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from harness.core import processes

T = TypeVar("T")
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
