"""Standard output whose reader leaves early, as `head` does, is not an error.

Later output goes nowhere, and the command keeps its own exit code: a FAIL that nobody reads to its end is
still a FAIL. Without this module typer, rich and Python's last flush would each make the exit code 1.
"""

from __future__ import annotations

import io
import locale
import os
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
    """Prepare stdout and stderr of this process, where they are its own: pytest replaces them."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _leavable(stream))


def in_utf8() -> None:
    """Start this process again in Python's UTF-8 mode, where the locale is not UTF-8.

    Files of the harness and of its users are UTF-8, and Python would read them in the encoding of the locale.
    """
    if not sys.flags.utf8_mode and locale.getencoding().lower().replace("-", "") != "utf8":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same program again


def left() -> bool:
    """Whether the reader of stdout has left. A command that only prints may stop then."""
    poll = select.poll()
    poll.register(STDOUT, 0)
    return any(seen & (select.POLLERR | select.POLLHUP) for _, seen in poll.poll(0))


def _leavable(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Leavable(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        # Where PYTHONIOENCODING has no such character, the message matters more.
        errors="backslashreplace" if stream.errors == "strict" else stream.errors,
        line_buffering=stream.line_buffering or stream.write_through,
    )
