"""Render log messages as a terminal would display them, with secrets masked.

Each process has its own virtual terminal. Pluto's client sends the output between two line feeds as one
message. The client starts each message with a prefix such as "[rank3] ", which is not part of the process's
output.
"""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

import re2

from harness.core import secret_rules
from harness.core.terminal_row import Row
from harness.core.terminal_text import Terminal, printable, rows
from harness.tracker.shared.requests import from_ms

Found = dict[str, Any]
LONGEST = 1 << 18
"""The maximum number of characters read from one message."""
TOTAL, SHORT = 1 << 22, 1 << 11
"""A page reads up to TOTAL characters of its messages, newest first, and then at most SHORT characters of
each older message."""
MAX_SHOWN_LENGTH = 10_000
"""The maximum number of characters shown per line."""
_OVERLAP = 1000
"""The number of characters after the first MAX_SHOWN_LENGTH that are also searched for secrets, so that a
secret at the end of the shown part is masked."""
_HINTS = re2.compile(secret_rules.HINTS.encode())
_PREFIX = re.compile(r"\[rank\d+\] ")


class Message(NamedTuple):
    """The log message that produced a terminal row."""

    id: int
    time: str
    kind: str
    sender: str
    prefix: str
    cut: int
    """The number of characters of the message that were not read."""


def visible_lines(messages: Sequence[sqlite3.Row], after: int, alone: bool) -> list[Found]:
    """Return the lines that messages with ids above `after` wrote or changed, in arrival order.

    If `alone` is set, each message gets its own terminal, because messages found by a search are not
    consecutive.
    """
    terminals: dict[object, Terminal[Message]] = {}
    terminal_rows: list[Row[Message]] = []
    remaining = TOTAL
    limits: dict[int, int] = {}
    for message in reversed(messages):
        limits[message["id"]] = max(SHORT, remaining)
        remaining -= len(message["message"])
    for message in messages:
        prefix, text = _split(message["message"])
        text = clipped(text, limits[message["id"]])
        cut = message["cut"] + len(message["message"]) - len(prefix) - len(text)
        time = from_ms(message["time_ms"])[11:23]
        origin = Message(message["id"], time, message["log_type"], message["sender"] or "", prefix, cut)
        terminal = terminals.setdefault(message["id"] if alone else (origin.sender, prefix), Terminal())
        terminal_rows += terminal.write(f"{text}\n", origin)
    for terminal in terminals.values():
        terminal_rows += terminal.flush()
    terminal_rows.sort(key=lambda row: row.first.id)
    texts = _redacted([row.first.prefix + row.text[: MAX_SHOWN_LENGTH + _OVERLAP] for row in terminal_rows])
    numbers: dict[int, int] = {}
    lines = []
    for row, text in zip(terminal_rows, texts, strict=True):
        number = numbers[row.first.id] = numbers.get(row.first.id, -1) + 1
        if row.last.id > after:
            lines.append(
                {
                    "id": f"{row.first.id}.{number}",
                    "time": row.last.time,
                    "kind": row.last.kind,
                    "sender": row.first.sender,
                    "message": printable(text[:MAX_SHOWN_LENGTH]),
                    "note": _note(row),
                }
            )
    return lines


def clipped(message: str, limit: int = LONGEST) -> str:
    """Return the first `limit` characters of a message.

    If the message contains carriage returns, as a progress bar does, return its prefix and its last lines
    instead.
    """
    if len(message) <= limit:
        return message
    prefix, text = _split(message)
    if "\r" not in text:
        return message[:limit]
    return prefix + text[-limit:].partition("\r")[2]


def cut(message: str) -> int:
    """Return the number of characters that `clipped` removes from a message."""
    return len(message) - len(clipped(message))


def visible(message: str) -> str:
    """Return a message's text as a terminal would display it, without control characters, for text
    searches."""
    return "\n".join(row.text for row in rows(clipped(message)))


def folded(text: str) -> str:
    """Return a text with its case folded and in Unicode normalization form NFKC, for text searches."""
    return unicodedata.normalize("NFKC", text).casefold()


def _split(message: str) -> tuple[str, str]:
    """Split a message into the prefix that Pluto's client added, or "", and the text that the process
    wrote."""
    match = _PREFIX.match(message)
    return (match[0], message[match.end() :]) if match else ("", message)


def _note(row: Row[Message]) -> str:
    omitted = max(0, len(row.text) - MAX_SHOWN_LENGTH) + row.last.cut
    return "; ".join(
        filter(
            None, [row.note, f"{omitted:,} more characters are available through the API" if omitted else ""]
        )
    )


def _redacted(lines: list[str]) -> list[str]:
    """Return lines with secrets masked. A secret such as a private key can span several lines."""
    text = "\n".join(lines)
    if _HINTS.search(text.encode("utf-8", "surrogatepass")) is None:
        return lines
    masked = secret_rules.masked(text, secret_rules.spans(text)).split("\n")
    return masked if len(masked) == len(lines) else [secret_rules.MASK] * len(lines)
