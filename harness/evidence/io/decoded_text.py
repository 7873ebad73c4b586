"""Text as it was before a program escaped it, split it across lines, or encoded it in base64 or hex.

A `View` is a modified copy of a text that maps its positions back to the original text.
"""

from __future__ import annotations

import base64
import html
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from harness.core.secret_rules import FIRST, Span

ESCAPE = re.compile(
    r"%[0-7][0-9A-Fa-f]|%[89A-Fa-f][0-9A-Fa-f](?:%[89A-Fa-f][0-9A-Fa-f]){1,3}"
    r"|&#[0-9]{1,7};|&#[xX][0-9A-Fa-f]{1,6};|&[A-Za-z]{2,8};"
    rf"|{FIRST}u[dD][89abAB][0-9A-Fa-f]{{2}}{FIRST}u[dD][c-fC-F][0-9A-Fa-f]{{2}}"
    rf"|{FIRST}u[0-9A-Fa-f]{{4}}|{FIRST}x[0-7][0-9A-Fa-f]"
    rf"|{FIRST}x[89A-Fa-f][0-9A-Fa-f](?:{FIRST}x[89A-Fa-f][0-9A-Fa-f]){{1,3}}"
    r"|'\\''|'\"'\"'|\\[^\sA-Za-z0-9]"
)
"""Matches an escape sequence in URLs, HTML, JSON, Python or the shell, even one that is escaped itself."""
ONE_LEVEL = re.compile(ESCAPE.pattern.replace(FIRST, r"\\"))
"""Like `ESCAPE`, except that `\\\\` is a backslash rather than another level of escapes."""
_RUN, _HEX_RUN = re.compile(r"[A-Za-z0-9+/_-]{16,}"), re.compile(r"[0-9A-Fa-f]{16,}")
_STANDARD = str.maketrans("-_", "+/")


def unescape(match: re.Match[str]) -> str:
    """Return the character for an escape sequence, or the sequence itself if it is not valid."""
    text = match[0]
    body = text.lstrip("\\")
    if text[0] in "&'":
        return html.unescape(text) if text[0] == "&" else "'"
    if text[0] == "\\" and body[:1] not in ("u", "x"):
        return text[1:]
    try:
        if body[0] in "%x":
            return bytes.fromhex(re.sub(r"\\*x|%", "", body)).decode()
        units = [int(unit, 16) for unit in re.findall(r"u([0-9A-Fa-f]{4})", body)]
        return b"".join(unit.to_bytes(2, "big") for unit in units).decode("utf-16-be", "surrogatepass")
    except ValueError:
        return text


@dataclass(frozen=True)
class View:
    """A modified copy of a string that maps its positions back to the original string."""

    text: str
    source: View | None = None
    at: list[int] = field(default_factory=list)
    """The position 0, followed by the start and end of each replacement in `text`."""
    origin: list[int] = field(default_factory=list)
    """For each position in `at`, the corresponding position in the text of `source`."""

    def replaced(self, pattern: re.Pattern[str], replacement: Any, before: str = "") -> View:
        """Return a view with the pattern's matches replaced, or this view if there are none.

        The characters in `before` are removed if they precede a match.
        """
        parts: list[str] = []
        at, origin = [0], [0]
        low = length = 0
        for match in pattern.finditer(self.text):
            new = replacement(match)
            if new == match[0]:
                continue
            unchanged = self.text[low : match.start()]
            unchanged = unchanged.rstrip(before) if before else unchanged
            parts += [unchanged, new]
            length += len(unchanged)
            at += [length, length + len(new)]
            origin += [low + len(unchanged), match.end()]
            length, low = length + len(new), match.end()
        return View("".join([*parts, self.text[low:]]), self, at, origin) if parts else self

    def place(self, start: int, end: int) -> Span:
        """Return the (start, end) in the original string that corresponds to a range in this view."""
        view = self
        while view.source is not None:
            before = bisect_right(view.at, start) - 1
            after = bisect_left(view.at, end)
            if after == len(view.at) or view.at[after] != end:
                after -= 1
            start = view.origin[before] + start - view.at[before]
            end = view.origin[after] + end - view.at[after]
            view = view.source
        return start, end


def decodings(text: str) -> Iterator[tuple[int, int, int, str]]:
    """Decode all base64 and hex in a string, at every alignment.

    Yield (start position in the string, number of characters per group, number of bytes that a group encodes,
    decoded bytes as Latin-1 text).
    """
    for run in _RUN.finditer(text):
        encoded = run[0].translate(_STANDARD)
        for skipped in range(4):
            length = (len(encoded) - skipped) // 4 * 4 + skipped
            remainder = encoded[length:] if len(encoded) - length > 1 else ""
            padded = encoded[skipped:length] + (remainder and remainder.ljust(4, "="))
            yield run.start() + skipped, 4, 3, base64.b64decode(padded).decode("latin-1")
    for run in _HEX_RUN.finditer(text):
        for skipped in range(2):
            length = (len(run[0]) - skipped) // 2 * 2
            content = bytes.fromhex(run[0][skipped : skipped + length]).decode("latin-1")
            yield run.start() + skipped, 2, 1, content
