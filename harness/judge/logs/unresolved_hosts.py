"""Find the log line in which PyTorch reports that it could not resolve the host named in a timeout error."""

from __future__ import annotations

import re
from collections.abc import Sequence

Lines = Sequence[tuple[int, str]]
_TARGET = re.compile(r"trying to connect to \(?([^\s(),]+), \d+\)?")
_UNRESOLVED = re.compile(r"network addresses of \(([^\s(),]+), \d+\) cannot be retrieved")
_C10D = re.compile(r"^\[[WIE].*?\] \[c10d\] ")
"""Pattern for the prefix of PyTorch's socket messages: level, time, file and line."""
_C10D_TIME = re.compile(r"^\[[WIE]\d+ (\d\d):(\d\d):(\d\d)")
LAST_ATTEMPT_SECONDS, DAY_SECONDS = 2, 86400
"""Durations in seconds. PyTorch gives up as soon as its last attempt to connect fails. Therefore, a message
that is more than LAST_ATTEMPT_SECONDS older than the error is about an earlier attempt. PyTorch does not log
every refused connection."""


def unresolved(lines: Lines, error: str) -> tuple[int, str] | None:
    """Return the log line which reports that the host in a timeout error could not be resolved.

    Returns None if a later attempt resolved the host.
    """
    target = _TARGET.search(error)
    host = target[1] if target else ""
    about_host = re.compile(rf"\[c10d\].*[\[( ]{re.escape(host)}[\],:]")
    host_lines = [
        entry for entry in lines if host and about_host.search(entry[1]) and not _TARGET.search(entry[1])
    ]
    if not host_lines or not _UNRESOLVED.search(host_lines[-1][1]):
        return None
    attempts = [text for _, text in lines if (own := _TARGET.search(text)) and own[1] == host]
    times = [at for text in attempts if (at := _c10d_seconds(text)) is not None]
    last = _c10d_seconds(host_lines[-1][1])
    after = (times[-1] - last) % DAY_SECONDS if times and last is not None else 0
    if LAST_ATTEMPT_SECONDS < after < DAY_SECONDS / 2:  # The message belongs to an earlier attempt.
        return None
    return host_lines[-1][0], _C10D.sub("", host_lines[-1][1])


def _c10d_seconds(text: str) -> int | None:
    """Return the time of day, in seconds, of a PyTorch message about a socket, or None."""
    match = _C10D_TIME.match(text)
    return 3600 * int(match[1]) + 60 * int(match[2]) + int(match[3]) if match else None


def unresolved_host(text: str) -> str:
    """Return the host that PyTorch could not resolve, according to the given message, or ""."""
    match = _UNRESOLVED.search(text)
    return match[1] if match else ""
