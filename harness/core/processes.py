"""Run external programs in their own process groups, with a time limit and captured output.

A program never outlives the call that started it. A signal interrupts only the main thread, so
`interrupt_all` kills the programs that other threads are waiting for.
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
from harness.core.proxies import with_exceptions

_running: dict[subprocess.Popen[str], str | None] = {}
"""Maps each running program to the name of the signal that interrupted it, or to None. All changes are atomic
operations without a lock, because a signal handler cannot wait for a lock.
"""
_interruptions: list[str] = []
"""The names of the signals that this process has received so far. If a signal arrives while a program is
being started, the program is killed as soon as it is running.
"""

_INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

CHOOSING = ("HARNESS_", "PLUTO_", "KEEP_CLUSTER", "KUBECONFIG")
"""Prefixes of the environment variables with which users choose a cluster, a run or a tracker. Callers of
`environment` can exclude them."""


def environment(
    changes: Mapping[str, str | None] | None = None,
    *,
    only: Sequence[str] | None = None,
    without: Sequence[str] = (),
) -> dict[str, str]:
    """Return a copy of this process's environment, with `changes` applied, to pass to another program.

    In `changes`, the value None removes a variable. If `only` is given, only variables with these names are
    inherited. `without` excludes names that start with the given prefixes. If a proxy is set, the loopback
    addresses are added to NO_PROXY.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if (only is None or name in only) and not name.startswith(tuple(without))
    }
    variables = {name: value for name, value in {**inherited, **(changes or {})}.items() if value is not None}
    return with_exceptions(variables)


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
    """Run a program, and return its stdout and stderr as text. `stdin` is text or an open file.

    On a timeout or an interruption, the whole process group is killed. Raises ToolError on a timeout and, if
    `check` is true, for a nonzero exit code. Raises HarnessError if the program does not exist. Raises
    KeyboardInterrupt in the calling thread if the harness is interrupted while the program is running.
    """
    text, source = (stdin, subprocess.PIPE) if isinstance(stdin, str) else (None, stdin or subprocess.DEVNULL)
    streams: dict[str, Any] = {"stdin": source, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started(command, cause=cause, env=env, **streams) as process:
        result = communicated(process, command, text, timeout=timeout, hint=hint, cause=cause)
    return checked(result, hint=hint, cause=cause) if check else result


def communicated(
    process: subprocess.Popen[str],
    command: Sequence[str],
    text: str | None,
    *,
    timeout: float,
    hint: str = "",
    cause: CauseId | None = None,
) -> subprocess.CompletedProcess[str]:
    """Send `text` to a program's stdin, wait for the program, and return the completed process.

    Call this inside the `started` block. If the program does not end in time, this function kills the whole
    process group and raises ToolError.
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
    result: subprocess.CompletedProcess[str], *, hint: str = "", cause: CauseId | None = None
) -> subprocess.CompletedProcess[str]:
    """Return a completed process unchanged. Raises ToolError if its exit code is not zero.

    Call this after the `started` block, which raises KeyboardInterrupt if an interruption killed the program.
    """
    if result.returncode != 0:
        raise ToolError(result.args, result.returncode, result.stdout + result.stderr, hint=hint, cause=cause)
    return result


@contextmanager
def started(
    command: Sequence[str], *, cause: CauseId | None, env: Mapping[str, str] | None = None, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """Start a program in its own process group, and yield its process. The block must wait for the process.

    By default, `env` is the result of `environment`. If the block raises, the whole process group is killed.
    `options` are passed to Popen. Raises HarnessError if the program does not exist, and KeyboardInterrupt if
    `interrupt_all` killed it.
    """
    since, process = interruptions(), None
    try:
        with _signals_wait():
            process = _popen(command, cause, env=environment() if env is None else dict(env), **options)
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
        with locks.fork_mutex:
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
            f"`{command[0]}` is not on PATH",
            hint="run `harness doctor` to see how to install this program",
            cause=cause,
        ) from None


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Return a context manager for a block that starts a program.

    Signals are deferred until the end of the block. A signal handler that runs while the program is being
    started cannot kill it, because the program is not yet in `_running`.
    """
    received: list[int] = []
    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for each in _INTERRUPTING:
            if callable(signal.getsignal(each)):
                previous[each] = signal.signal(each, lambda number, _: received.append(number))
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    for signum in received:
        previous[signum](signum, None)


def interruptions() -> int:
    """Return the number of interrupting signals that this process has received."""
    return len(_interruptions)


def interrupt_all(signal_name: str) -> None:
    """Kill every program that a thread is waiting for. A signal handler can safely call this function."""
    _interruptions.append(signal_name)
    for process in list(_running):
        _running[process] = signal_name
        kill_group(process)


@contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """Return a context manager in whose block SIGINT, SIGTERM and SIGHUP kill the programs that threads are
    waiting for, and raise KeyboardInterrupt.

    Ignored signals stay ignored. Outside the main thread, the context manager has no effect.
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
    """Send SIGKILL to the process group of `process`."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def is_alive(pid: int | str) -> bool:
    """Return whether a process exists, regardless of its owner."""
    try:
        return psutil.pid_exists(int(pid))
    except (ValueError, OverflowError):
        return False


def started_with(text: str) -> list[psutil.Process]:
    """Return the processes that have `text` in an environment variable.

    Processes that this user cannot inspect are left out.
    """
    processes = []
    for process in psutil.process_iter(["environ", "cmdline"]):
        if any(text in value for value in (process.info["environ"] or {}).values()):
            processes.append(process)
    return processes


def command_line(process: psutil.Process) -> str:
    """Return a process's command line, or "" if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
