"""Run an outside program: with a time limit, in its own process group, with its output kept, and never left
behind.

A signal interrupts only the main thread. `interrupt_all` ends what other threads wait for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import IO, Any

import psutil

from harness.core import locks
from harness.core.causes import CauseId
from harness.core.errors import HarnessError, ToolError

_running: dict[subprocess.Popen[str], str | None] = {}
"""Each running program, with the name of the signal that interrupted it. It is changed by single operations,
without a lock: a signal handler cannot wait for one.
"""
_interruptions: list[str] = []
"""The signals so far. A program that a thread was starting then is ended as soon as it runs."""

_INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

CHOOSING = ("HARNESS_", "PLUTO_", "KEEP_CLUSTER", "KUBECONFIG")
"""Beginnings of the names of variables by which a user chooses a cluster, a run or a tracker."""


def environment(
    changes: Mapping[str, str | None] | None = None,
    *,
    only: Sequence[str] | None = None,
    without: Sequence[str] = (),
) -> dict[str, str]:
    """The environment for another program: this process's with `changes`, where None takes a variable away.

    `only`: of this process's, these names alone. `without`: no name that begins so.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if (only is None or name in only) and not name.startswith(tuple(without))
    }
    return {name: value for name, value in {**kept, **(changes or {})}.items() if value is not None}


def run(
    command: Sequence[str],
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
    stdin: str | IO[Any] | None = None,
    check: bool = True,
    hint: str = "",
    cause: CauseId | None = None,
) -> subprocess.CompletedProcess[str]:
    """Return stdout and stderr as text. `stdin` is text or an open file. The whole group is killed on
    timeout and on interruption.

    Raises ToolError for a non-zero exit (with `check`), and HarnessError when the program does not exist.
    Raises KeyboardInterrupt, in whichever thread called it, when the harness was interrupted meanwhile.
    """
    text, source = (stdin, subprocess.PIPE) if isinstance(stdin, str) else (None, stdin or subprocess.DEVNULL)
    streams: dict[str, Any] = {"stdin": source, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started(command, cause=cause, env=env, **streams) as process:
        done = communicated(process, command, text, timeout=timeout, hint=hint, cause=cause)
    return checked(done, hint=hint, cause=cause) if check else done


def communicated(
    process: subprocess.Popen[str],
    command: Sequence[str],
    text: str | None,
    *,
    timeout: float,
    hint: str = "",
    cause: CauseId | None = None,
) -> subprocess.CompletedProcess[str]:
    """Give a program, in its block of `started`, `text` on stdin, and return how it ended.

    Raises ToolError on timeout. The whole group is killed then.
    """
    try:
        out, err = process.communicate(text, timeout=timeout)
    except subprocess.TimeoutExpired:
        kill_group(process)
        out, err = process.communicate()
        raise ToolError(
            command, -1, f"{out}{err}\nstill running after {timeout:.0f} s", hint=hint, cause=cause
        ) from None
    return subprocess.CompletedProcess(list(command), process.returncode, out, err)


def checked(
    done: subprocess.CompletedProcess[str], *, hint: str = "", cause: CauseId | None = None
) -> subprocess.CompletedProcess[str]:
    """Return `done` itself. Raises ToolError for a non-zero exit.

    To be called after the block of `started`, where an interruption comes first: it killed the program.
    """
    if done.returncode != 0:
        raise ToolError(done.args, done.returncode, done.stdout + done.stderr, hint=hint, cause=cause)
    return done


@contextmanager
def started(
    command: Sequence[str], *, cause: CauseId | None, env: Mapping[str, str] | None = None, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """Start a program in a group of its own, and wait for it in the block. Whatever ends the block early
    ends the whole group. `options` are those of Popen.

    Raises HarnessError when the program does not exist, and KeyboardInterrupt when `interrupt_all` ended it.
    """
    since, process = interruptions(), None
    try:
        with _signals_wait():
            process = _popen(command, cause, env=dict(env) if env is not None else None, **options)
            _running[process] = None
        if interruptions() > since:
            _running[process] = _interruptions[-1]
            kill_group(process)
        yield process
    except BaseException:
        if process is not None:
            kill_group(process)
            process.wait()
        raise
    finally:
        signal_name = _running.pop(process, None) if process is not None else None
    if signal_name is not None:
        raise KeyboardInterrupt(signal_name)


def _popen(command: Sequence[str], cause: CauseId | None, **options: Any) -> subprocess.Popen[str]:
    try:
        with locks.changing:
            return subprocess.Popen(
                list(command),
                text=True,
                errors="replace",
                start_new_session=True,
                pass_fds=locks.inherited(),
                **options,
            )
    except FileNotFoundError:
        raise HarnessError(
            f"`{command[0]}` is not on PATH", hint="`harness doctor` says how to get it", cause=cause
        ) from None


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Let signals come after the block. One that came while a program starts would find nothing to end: the
    program runs, and nobody knows its process yet.
    """
    came: list[int] = []
    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for each in _INTERRUPTING:
            if callable(signal.getsignal(each)):
                previous[each] = signal.signal(each, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    for caught in came:
        previous[caught](caught, None)


def interruptions() -> int:
    """Return how many interruptions this process had."""
    return len(_interruptions)


def interrupt_all(signal_name: str) -> None:
    """End every program that any thread waits for. Safe in a signal handler."""
    _interruptions.append(signal_name)
    for process in list(_running):
        _running[process] = signal_name
        kill_group(process)


@contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """Make SIGTERM and the end of the terminal interrupt the block as Ctrl-C does, and end programs that any
    thread waits for. An ignored signal stays ignored. Outside of the main thread this does nothing.
    """

    def interrupt(signum: int, frame: FrameType | None) -> None:
        del frame
        name = signal.Signals(signum).name
        interrupt_all(name)
        raise KeyboardInterrupt(name)

    previous = {}
    if threading.current_thread() is threading.main_thread():
        for each in _INTERRUPTING:
            if signal.getsignal(each) not in (signal.SIG_IGN, None):
                previous[each] = signal.signal(each, interrupt)
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


def kill_group(process: subprocess.Popen[str]) -> None:
    """Send SIGKILL to everything that `process` started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def alive(pid: int | str) -> bool:
    """Whether this process exists, whoever owns it."""
    try:
        return psutil.pid_exists(int(pid))
    except (ValueError, OverflowError):
        return False


def started_with(text: str) -> list[psutil.Process]:
    """Processes that have `text` in their environment, of those that this user may look at."""
    found = []
    for process in psutil.process_iter(["environ", "cmdline"]):
        if any(text in value for value in (process.info["environ"] or {}).values()):
            found.append(process)
    return found


def command_line(process: psutil.Process) -> str:
    """Its arguments; "" when it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
