"""Standard output whose reader leaves early, as `head` does: that is no error.

What is written from then on goes nowhere, and the command keeps the exit code of its own: a FAIL that nobody
reads to its end is still one. Without this typer, rich and Python's last flush would each make it a 1.
"""

from __future__ import annotations

import io
import select
import sys
from typing import Any

STDOUT = 1


class _Leavable(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def may_be_left() -> None:
    """Of stdout and stderr of this process, where they are its own: pytest puts others in their place."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _leavable(stream))


def left() -> bool:
    """Whether the reader of stdout is gone: whoever only prints may stop."""
    poll = select.poll()
    poll.register(STDOUT, 0)
    return any(seen & (select.POLLERR | select.POLLHUP) for _, seen in poll.poll(0))


def _leavable(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Leavable(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering or stream.write_through,
    )
