"""Match the error of the Pluto client on a system that reports no CPU frequency."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NO_CPU_FREQUENCY = re.compile(
    r"^(\[rank\d+\]: ?)?ValueError: min\(\) (iterable argument is empty|arg is an empty sequence)"
)
_READS_CPU_FREQUENCY = re.compile(r'File ".*[/\\]pluto[/\\]sys\.py", line \d+, in get_info')
"""Pattern for a stack frame in the Pluto client's function that computes the minimum of all CPU frequencies.
The function fails if the system reports no frequency."""
_FRAME_LINES = 8
"""Maximum number of lines between a stack's innermost "File …" line and the error below it."""
_FILE_OF_A_STACK = re.compile(r'^(\[rank\d+\]: ?)?\s*File "')


def is_unknown(lines: Sequence[tuple[int, str]], error: int, text: str) -> bool:
    """Return whether the Pluto client raised the error in line `error` when it read the CPU frequency."""
    if not _NO_CPU_FREQUENCY.match(text):
        return False
    stack_lines = [line for number, line in lines if error - _FRAME_LINES <= number < error]
    files = [line for line in stack_lines if _FILE_OF_A_STACK.match(line)]
    return bool(files) and _READS_CPU_FREQUENCY.search(files[-1]) is not None
