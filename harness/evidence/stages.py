"""Time a stage of a run, and say how it ended, whatever ended it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from harness.core.clock import Clock
from harness.core.errors import HarnessError
from harness.evidence.schema import Stage


@contextlib.contextmanager
def timed(
    name: str, clock: Clock, begun: Callable[[], object], ended: Callable[[Stage, BaseException | None], None]
) -> Iterator[None]:
    """Call `begun`, and after the block `ended` with the stage and the error that ended it early, if any."""
    started_at, start, failed = clock.now(), clock.monotonic(), None
    try:
        begun()  # Inside, because a signal may come as soon as others can see that the stage has begun.
        yield
    except BaseException as error:
        failed = error
        raise
    finally:
        stage = Stage(
            name=name,
            started_at=started_at,
            seconds=round(clock.monotonic() - start, 3),
            ok=failed is None,
            error=None if failed is None else (str(failed) or type(failed).__name__),
            cause=failed.cause if isinstance(failed, HarnessError) else None,
        )
        ended(stage, failed)
