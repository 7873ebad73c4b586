"""Run a test's steps in order. If a step raises an exception, its result is UNKNOWN, and the next step runs.

SIGTERM, SIGINT and the deadline end the run immediately, even if PyTorch is waiting for a GPU that never
responds. The remaining steps are then reported as UNKNOWN, and the report is still written.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from .check import Check, Where
from .compat import LackingError
from .emit import Emitter

_ERROR_LETTERS = 600


@dataclass(frozen=True)
class Step:
    """A part of a test. It yields checks.

    If it raises an exception, an UNKNOWN check is reported instead of the missing checks.
    """

    id: str
    tag: str
    make: Callable[[], Iterable[Check]]
    where: Where = field(default_factory=Where)
    shown: Callable[[Check], bool] = lambda _: False
    """Returns whether a check's line is already in the log."""

    def unknown(self, reason: str) -> Check:
        """Return an UNKNOWN check that takes the place of this step's checks. `reason` becomes its text."""
        return Check(id=self.id, tag=self.tag, verdict="UNKNOWN", text=reason, **self.where)


@dataclass(frozen=True)
class Section:
    """A group of steps.

    They are created after the previous sections have run, because they may depend on their results.
    """

    id: str
    tag: str
    steps: Callable[[], Iterable[Step]]


class Runner:
    """Runs sections. A signal or the deadline ends the run early.

    Create only one runner per process, and only in the main thread.
    """

    def __init__(self, emitter: Emitter, deadline: float) -> None:
        self.emitter = emitter
        self.extra: dict[str, Any] = {}
        """The fields of the report other than the checks."""
        self.at_end: list[Callable[[], object]] = []
        """Callbacks that stop child processes if the run ends early."""
        self._remaining: list[Step] = []
        self._start = time.monotonic()
        self._deadline = self._start + deadline

    def run(self, sections: Iterable[Section]) -> int:
        """Run the sections, write the report, and return the exit code."""
        waiting = list(sections)
        self._remaining = [_section_step(section) for section in waiting]
        with self._watched():
            for number, section in enumerate(waiting, 1):
                later_steps = [_section_step(one) for one in waiting[number:]]
                self._section(section, later_steps)
            return self.emitter.finish(**self.extra)

    def _section(self, section: Section, later_steps: list[Step]) -> None:
        try:
            steps = list(section.steps())
        except Exception as error:
            self.emitter.say(_section_step(section).unknown(_words(error)))
            return
        for number, step in enumerate(steps):
            self._remaining = [*steps[number:], *later_steps]
            self._step(step)
        self._remaining = later_steps

    def _step(self, step: Step) -> None:
        start = time.monotonic()
        count = 0
        try:
            for check in step.make():
                now = time.monotonic()
                timed_check = check if check.seconds else replace(check, seconds=round(now - start, 3))
                self.emitter.say(timed_check, shown=not step.shown(check))
                start, count = now, count + 1
        except Exception as error:
            self.emitter.say(step.unknown(_words(error)))
            return
        if not count:
            self.emitter.say(step.unknown("the step returned no check"))

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """While the block runs, watch for signals and the deadline in a separate thread.

        A GPU call may block the main thread, so that it cannot run a signal handler. But even then, the
        interpreter writes the number of each signal to a pipe, which this thread reads.
        """
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        handlers = {
            number: signal.signal(number, _ignore_signal) for number in (signal.SIGTERM, signal.SIGINT)
        }
        stop = threading.Event()
        thread = threading.Thread(target=self._watch, args=(reader, stop), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            os.write(writer, b"\0")
            thread.join()
            signal.set_wakeup_fd(before)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            os.close(reader)
            os.close(writer)

    def _watch(self, reader: int, stop: threading.Event) -> None:
        while not stop.is_set():
            remaining = self._deadline - time.monotonic()
            if remaining <= 0:
                return self._end(f"the deadline of {self._deadline - self._start:.0f} s passed")
            ready, _, _ = select.select([reader], [], [], remaining)
            numbers = os.read(reader, 64) if ready else b""
            if signal.SIGTERM in numbers or signal.SIGINT in numbers:
                return self._end("the process received a termination signal")
        return None

    def _end(self, reason: str) -> None:
        """Emit UNKNOWN for the remaining steps, write the report, and exit the process."""
        steps, elapsed = list(self._remaining), time.monotonic() - self._start
        for number, step in enumerate(steps):
            state = "not finished" if number == 0 else "not run"
            self.emitter.say(step.unknown(f"{state}: {reason} after {elapsed:.0f} s"))
        if not steps:
            words = f"{reason} after {elapsed:.0f} s, when all checks had already run"
            self.emitter.say(Check(id="run.ended", tag="RESULT", verdict="UNKNOWN", text=words))
        code = self.emitter.finish(**self.extra)
        for call in list(self.at_end):
            with contextlib.suppress(Exception):
                call()
        os._exit(code)


def _section_step(section: Section) -> Step:
    return Step(section.id, section.tag, tuple)


def _ignore_signal(_number: int, _frame: object) -> None:
    """Do nothing. The thread that reads the pipe handles the signal."""


def _words(error: BaseException) -> str:
    if isinstance(error, LackingError):
        return str(error)
    return f"{type(error).__name__}: {error}"[:_ERROR_LETTERS]
