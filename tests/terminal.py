"""A program on a real terminal, and its screen as a person sees it: a pty, and pyte, a VT100 in Python."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyte
from rich.style import Style
from rich.text import Text

_COLOURS = {"brown": "yellow", "default": None}
"""pyte's names that rich calls otherwise."""


class Terminal:
    """`for text in terminal.run([...]): …`, with `text` the screen after each piece of output."""

    def __init__(self, columns: int = 110, lines: int = 40) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.code: int | None = None
        """The program's exit code, once it has ended."""

    def run(
        self, command: Sequence[str], cwd: Path, environ: Mapping[str, str], seconds: float
    ) -> Iterator[str]:
        """Until the program ends. Raises TimeoutError; the program is ended when the loop is left."""
        ours, theirs = pty.openpty()
        size = struct.pack("HHHH", self.screen.lines, self.screen.columns, 0, 0)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
        env = {**environ, "TERM": "xterm-256color", "COLUMNS": str(self.screen.columns)}
        program = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        try:
            yield from self._read(ours, time.monotonic() + seconds)
            self.code = program.wait(max(1.0, seconds))
        finally:
            if program.poll() is None:
                program.terminate()
                program.wait()
            os.close(ours)

    def _read(self, fd: int, limit: float) -> Iterator[str]:
        while (left := limit - time.monotonic()) > 0:
            if not select.select([fd], [], [], left)[0]:
                continue
            try:
                piece = os.read(fd, 65536)
            except OSError:  # EIO: nobody has the other end any more
                return
            if not piece:
                return
            self._stream.feed(piece)
            yield "\n".join(self.screen.display)
        raise TimeoutError("\n".join(self.screen.display))

    def text(self) -> Text:
        """The screen with its colours, for rich; empty lines below it left out."""
        rows = []
        for y in range(self.screen.lines):
            row = Text()
            for x in range(self.screen.columns):
                cell = self.screen.buffer[y][x]
                colour = _COLOURS.get(cell.fg, cell.fg)
                if colour and colour.startswith("bright"):
                    colour = f"bright_{colour.removeprefix('bright')}"
                row.append(cell.data, Style(color=colour, bold=cell.bold))
            row.rstrip()
            rows.append(row)
        while rows and not rows[-1].plain:
            rows.pop()
        return Text("\n").join(rows)
