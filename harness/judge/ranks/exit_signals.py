"""Decode the signal in the exit code of a container or a rank."""

from __future__ import annotations

import signal

_PASSED_ON = [
    256 - number for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)
]
"""Exit codes of launchers that exit with the negative exit code of a process (modulo 256)."""


def signal_name(number: int) -> str:
    """Return a signal's number and name, such as "signal 9 (SIGKILL)"."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def signal_of(exit_code: int | None) -> int:
    """Return the signal encoded in an exit code, or 0 for none.

    A shell returns 128 + n and torchrun reports -n. A launcher that calls sys.exit(-n), such as DeepSpeed,
    exits with 256 - n.
    """
    exit_code = exit_code or 0
    if exit_code in _PASSED_ON:
        return 256 - exit_code
    return -exit_code if exit_code < 0 else exit_code - 128 if 128 < exit_code <= 192 else 0
