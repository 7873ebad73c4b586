"""Recognise log lines that have already been read, because logs are always reread from the first line."""

from __future__ import annotations

import re

_STAMPED = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_NEXT_UNSTAMPED = re.compile(rb"\n(?!\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")


class KnownLines:
    """The position up to which a log was read: the newest timestamp, and the number of lines that have it."""

    def __init__(self) -> None:
        self._last, self._lines = b"", 0
        self._skipping, self._skipped = False, 0
        self.tail = b""
        """The last line, if it has no line ending yet. It is written when the end of the log is reached."""
        self.strange = False
        """Whether a line without a timestamp was read. Such lines do not belong to the log."""

    def again(self) -> None:
        """Prepare to read the log again from its first line."""
        self.strange = False
        self._skipping, self._skipped = bool(self._last), 0

    def fresh(self, lines: bytes) -> bytes:
        """Return the lines that have not been read yet, and mark them as read. All lines must be complete.

        Python is too slow to parse every line from a rank that writes 10 MB/s. If all lines have timestamps
        and none has been read before, only those with the newest timestamp are parsed.
        """
        end = len(lines) - 1
        if self._skipping or not _STAMPED.match(lines) or _NEXT_UNSTAMPED.search(lines, 0, end):
            fresh_lines = [line for line in lines[:end].split(b"\n") if self.new(line)]
            return b"\n".join((*fresh_lines, b"")) if fresh_lines else b""
        stamp, same_count = b"", 0
        while end > 0:
            begin = lines.rfind(b"\n", 0, end) + 1
            own = lines[begin:end].split(b" ", 1)[0]
            if same_count and own != stamp:
                break
            stamp, same_count, end = own, same_count + 1, begin - 1
        begun_before = end <= 0 and stamp == self._last
        self._last, self._lines = stamp, same_count + (self._lines if begun_before else 0)
        return lines

    def new(self, line: bytes, whole: bool = True) -> bool:
        """Return whether a line has not been read yet. If it is complete (`whole`), mark it as read."""
        if not _STAMPED.match(line):
            self.strange = True
            return False
        stamp = line.split(b" ", 1)[0]
        if self._skipping:
            self._skipped += stamp == self._last
            if stamp < self._last or (stamp == self._last and self._skipped <= self._lines):
                return False
            self._skipping = False
        if not whole:
            return True
        self._lines = self._lines + 1 if stamp == self._last else 1
        self._last = stamp
        return True
