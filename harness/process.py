"""Run an outside program: bounded, in its own process group, its output kept, never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from harness.errors import HarnessError, ToolError


def run(
    command: Sequence[str],
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    check: bool = True,
    hint: str = "",
    cause: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Stdout and stderr as text. The whole group is killed on timeout and on interruption.

    Raises ToolError for a non-zero exit (with `check`), HarnessError when the program is not there.
    """
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=dict(env) if env is not None else None,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise HarnessError(
            f"`{command[0]}` is not on PATH", hint="`harness doctor` says how to get it", cause=cause
        ) from None
    try:
        out, err = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        kill_group(process)
        out, err = process.communicate()
        raise ToolError(
            command, -1, f"{out}{err}\nstill running after {timeout:.0f} s", hint=hint, cause=cause
        ) from None
    except BaseException:
        kill_group(process)
        process.wait()
        raise
    if check and process.returncode != 0:
        raise ToolError(command, process.returncode, out + err, hint=hint, cause=cause)
    return subprocess.CompletedProcess(list(command), process.returncode, out, err)


def kill_group(process: subprocess.Popen[str]) -> None:
    """SIGKILL to everything that `process` started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
