"""Match errors about the environment variables with which the ranks find each other."""

from __future__ import annotations

import re
from collections.abc import Sequence

_START = r"^(\[rank\d+\]: ?)?"
MISSING = (
    rf"{_START}(ValueError: Error initializing torch\.distributed using env:// rendezvous: "
    r"environment variable \w+ expected, but not set"
    r"|KeyError: '(RANK|LOCAL_RANK|NODE_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'$)"
)
"""Pattern for errors that a variable is not set. A KeyError can have another reason (see `applies`)."""
NO_HOST = r"The hostname of the rendezvous endpoint '.{0,200}' must be a dot-separated list"
NO_PORT = (
    r"[Ee]rror.*(?i:master.?port).*'tcp://[\d.]+:\d+'"
    r"|The port number of the rendezvous endpoint '.{0,200}' must be an integer"
    r"|failed to listen on any local network address.{0,200}(name: EACCES|errno: 13 )"
)
NODE_RANK = rf"{_START}IndexError: list index out of range$"
"""Pattern for the error of a torchrun whose --node_rank is not less than its --nnodes (see `applies`)."""
_OF_TORCHRUN = re.compile(r'^\s*File ".*[/\\]server[/\\]api\.py", line \d+, in _assign_worker_ranks')
"""Pattern for the innermost frame of the IndexError that torchrun raises."""
_OF_ENVIRON = re.compile(r'^(\[rank\d+\]: ?)?\s*File "(<frozen os>|.*[/\\]os\.py)", line \d+, in __getitem__')
"""Pattern for the innermost frame of a KeyError that os.environ raises."""
_FRAME_LINES = 4
"""Maximum number of lines between that frame and the error."""


def applies(lines: Sequence[tuple[int, str]], error: int, text: str) -> bool:
    """Return whether the error in line `error`, which matches MISSING or NODE_RANK, is about a variable.

    For a KeyError or an IndexError, the frame above it decides.
    """
    frame = _OF_ENVIRON if "KeyError" in text else _OF_TORCHRUN if "IndexError" in text else None
    above = (line for number, line in lines if error - _FRAME_LINES <= number < error)
    return frame is None or any(frame.match(line) for line in above)
