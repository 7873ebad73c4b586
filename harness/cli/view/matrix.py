"""Show a running matrix on a terminal: progress lines above a table of finished and running cells."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from harness.cli.options import progress
from harness.core.progress import Progress
from harness.report.terminal.console import Console
from harness.versions.matrix import Matrix
from harness.versions.matrix_text import render

PER_SECOND = 2


def watching(quiet: bool) -> tuple[Progress, Callable[[Matrix], AbstractContextManager[object]]]:
    """Return a progress function, and a function whose context manager shows a matrix until its `with` block
    ends.

    If stderr is not a terminal, only progress lines are printed, or nothing if `quiet` is true.
    """
    console, start = Console(stderr=True), time.monotonic()
    if quiet or not console.is_terminal or console.is_dumb_terminal:
        return progress(quiet), lambda _matrix: nullcontext()

    def say(text: str) -> None:
        console.print(Text(f"[{time.monotonic() - start:6.1f}s] {text}", style="dim"))

    @contextmanager
    def shown(matrix: Matrix) -> Iterator[None]:
        def now() -> RenderableType:
            lines = [
                Text(last, style="dim", overflow="ellipsis", no_wrap=True) for last in matrix.last_lines()
            ]
            return Group(Text(), render(matrix.document(), dict(matrix.running)), *lines)

        with Live(get_renderable=now, console=console, refresh_per_second=PER_SECOND, transient=True):
            yield

    return say, shown
