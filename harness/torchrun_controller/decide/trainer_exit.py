"""Explain how a trainer ended, based on the last lines of the trainer's log.

These lines show failed ranks or a failed setup command. torchrun exits with 1 if a rank fails. torchrun
reports the ranks' exit codes only in the table that it prints last ("Root Cause",
torch.distributed.elastic.multiprocessing.errors.ChildFailedError, observed with torch 2.6). With
terminationMessagePolicy FallbackToLogsOnError, the kubelet copies the last 2048 bytes of the log into a
failed container's status, so the log does not have to be fetched.
"""

from __future__ import annotations

import re
import signal

from harness.torchrun_controller.api import names

LONGEST_LINE = 300
_RANK = re.compile(r"^ *rank +: (\d+) \(local_rank: \d+\)\n *exitcode +: (-?\d+) \(pid: \d+\)", re.MULTILINE)
_ERROR = re.compile(
    r"^ *traceback : Traceback \(most recent call last\):\n(?:.*\n)*?(?=\s*\n|=+)", re.MULTILINE
)
_SETUP = re.compile(rf"^{re.escape(names.SETUP_FAILED)} (\d+)$", re.MULTILINE)
_RULE = re.compile(r"^[=\-*]+$")


def explained(code: str, message: str) -> str:
    """Return how a trainer ended: `code`, such as "Error, exit code 1", and the cause from `message`.

    `message` is the container's termination message, which contains the last lines of the container's log, or
    "".
    """
    setup = _SETUP.search(message)
    if setup:
        last = _last_line(message[: setup.start()])
        return f"setupCommand failed with exit code {setup[1]}" + (f": {last}" if last else "")
    ranks = _RANK.findall(message)
    if ranks:  # The last rank in the table is the root cause.
        rank, exit_code = ranks[-1]
        error = _ERROR.search(message)
        cause = _last_line(error[0]) if error else ""
        return f"{code} of torchrun, because rank {rank} {_exit_text(int(exit_code))}" + (
            f": {cause}" if cause else ""
        )
    last = _last_line(message)
    return f"{code}: {last}" if last else code


def _exit_text(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was ended by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    except ValueError:
        return f"was ended by signal {-exit_code}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if line and not _RULE.match(line)), "")[:LONGEST_LINE]
