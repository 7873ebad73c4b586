"""Keep a command's exit code when the reader of its stdout exits early, as `head` does.

The rest of the output is discarded. A verdict's exit code must not depend on how much of the output is read.
Without this module, a broken pipe in typer, in rich or in the interpreter's final flush would change the exit
code to 1.
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


def ignore_broken_pipes() -> None:
    """Ignore broken pipes on stdout and stderr.

    Streams that another program, such as pytest, has replaced are not changed.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _leavable(stream))


def in_utf8() -> None:
    """Restart this process in Python's UTF-8 mode if the locale is not UTF-8.

    All files of the harness and of its users are in UTF-8, but Python would decode them with the locale's
    encoding.
    """
    if not sys.flags.utf8_mode and locale.getencoding().lower().replace("-", "") != "utf8":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same program again


def reader_closed() -> bool:
    """Return whether the program that reads stdout has closed the pipe.

    In that case, a command that only prints can stop.
    """
    poll = select.poll()
    poll.register(STDOUT, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _leavable(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Leavable(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        # A character that the encoding does not support is escaped, so that the rest of the message is still
        # printed.
        errors="backslashreplace" if stream.errors == "strict" else stream.errors,
        line_buffering=stream.line_buffering or stream.write_through,
    )
