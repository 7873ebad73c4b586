"""A row of the terminal screen that `terminal_text` emulates, and the texts that were replaced in it.

The module needs only the standard library, like `terminal_text`.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Generic, NamedTuple, TypeVar

Mark = TypeVar("Mark")

COLUMNS = 1024
"""The width of the screen. A longer line continues in the next row."""
MAX_REPLACED = 50
"""The maximum number of replaced texts that are kept for each row."""
_WORD_END = 64
"""The number of characters before and after a replaced text that are searched for the rest of its first and
last words."""
_MAX_COMBINED = 16
_JAMO = re.compile(r"[\u1160-\u11ff\ud7b0-\ud7ff]")
"""Matches a Hangul vowel or final consonant, which joins the character before it."""
_WORD = re.compile(r"[^\W\d_]{3,}")
_LETTERS = re.compile(r"[^\W\d_]*")
_LETTERS_BEFORE = re.compile(r"[^\W\d_]*\Z")


class Row(NamedTuple, Generic[Mark]):
    """A line as a terminal shows it. `first` and `last` are the values of `mark` that were passed to
    `Terminal.write` with the first and the last output that changed the line."""

    text: str
    first: Mark
    last: Mark
    updates: int = 0
    """The number of times that text in the row was replaced by other text."""
    replaced: bool = False
    """Whether the terminal no longer shows this text, because other text replaced it."""

    @property
    def note(self) -> str:
        """Return a note about text that the terminal no longer shows, or "" if there is no such text."""
        if self.replaced:
            return "replaced by later output"
        return f"{self.updates:,} update{'s' if self.updates != 1 else ''} left out" if self.updates else ""

    @property
    def described(self) -> str:
        """Return the text, followed by the note in parentheses if there is one."""
        return f"{self.text} ({self.note})" if self.note else self.text


class ScreenRow(Generic[Mark]):
    """A row of the screen, as one string per column. A wide character is followed by an empty string."""

    __slots__ = ("_end", "_jump", "_lost", "_piece", "_start", "_whole", "_width", "cells", "first", "last",
                 "shown", "updates", "wrapped")  # fmt: skip

    def __init__(self, cells: str, mark: Mark) -> None:
        self.cells: str | list[str] = cells
        self.first = self.last = mark
        self.updates = 0
        self.wrapped = False
        """Whether the line was wider than the screen and continues in the next row."""
        self.shown: str | None = None
        """The text of this row that `complete` has already returned, or None."""
        self._jump = -1
        self._piece = self._whole = ""
        self._start = self._end = self._width = 0
        self._lost: list[tuple[str, str]] = []
        """Replaced texts, each with the content of the whole row before the replacement."""

    def begin(self, text: str, mark: Mark) -> None:
        """Write text into a row that is still blank."""
        self.cells, self.last = text, mark
        self.first = self.first if self.updates else mark

    @property
    def blank(self) -> bool:
        return not self.cells

    @property
    def width(self) -> int:
        if isinstance(self.cells, str) and self.cells.isascii():
            return len(self.cells)
        return len(self._list())

    def text(self) -> str:
        if isinstance(self.cells, str):
            return self.cells
        text = "".join(self.cells)
        return text if self._jump < 0 else text.rstrip(" ")

    def complete(self) -> Row[Mark] | None:
        """Return the row if it has never been returned or if its words have changed since it was last
        returned, and otherwise None."""
        text = self.text()
        if self.shown is None or not _similar(_words(text), _words(self.shown)):
            self.shown = text
            return Row(text, self.first, self.last, self.updates)
        return None

    def put(self, column: int, cells: list[str], jump: int, mark: Mark) -> None:
        """Write cells into the row, starting at a column."""
        own = self._list()
        if not own and not self.updates:
            self.first = mark
        if column < len(own):
            if own[column] == "" and column:
                own[column - 1] = own[column] = " "
            end = min(len(own), column + len(cells))
            if own[column:end] != cells[: end - column]:
                self._replace(column, end, jump)
            if end < len(own) and own[end] == "":
                own[end] = " "
            own[column : column + len(cells)] = cells
        else:
            own.extend([" "] * (column - len(own)))
            own.extend(cells)
        self.last = mark

    def character(self, column: int) -> list[str]:
        """Return the cells of the character that occupies a column."""
        own = self._list()
        return own[column - 1 : column + 1] if column and own[column] == "" else own[column : column + 1]

    def join(self, column: int, one: str) -> bool:
        """Combine the character `one` with the character in a column, if `one` is a combining character.

        Return whether it was added.
        """
        own = self._list()
        at = column - 1 if column and own[column] == "" else column
        added = _joins(one) and len(own[at]) < _MAX_COMBINED
        own[at] += one if added else ""
        return added

    def erase(self, start: int, end: int, jump: int, mark: Mark) -> None:
        own = self._list()
        end = min(end, len(own))
        if start >= end:
            return
        self._replace(start, end, jump)
        if end == len(own):
            del own[start:]
        else:
            own[start:end] = [" "] * (end - start)
        self.last = mark

    def delete(self, column: int, count: int, jump: int, mark: Mark) -> None:
        own = self._list()
        if column < len(own):
            self._replace(column, min(len(own), column + count), jump)
            del own[column : column + count]
            self.last = mark

    def insert(self, column: int, count: int, mark: Mark) -> None:
        own = self._list()
        if column < len(own):
            own[column:column] = [" "] * min(count, COLUMNS - len(own))
            self.last = mark

    def lost(self, before: str, following: list[ScreenRow[Mark]]) -> list[str]:
        """Return the replaced texts whose words appear neither in this row nor in the neighbouring rows."""
        self._settle()
        if not self._lost:
            return []
        own, above = _words(self.text()), _words(before)
        lost_texts = []
        for text, whole in self._lost:
            words = _words(text)
            if _similar(words, own) or _similar(words, above):
                continue
            if later_row := next((row for row in following if row.has(words)), None):
                later_row.updates += self.updates  # A progress bar has moved to a later row.
                self.updates = 0
            else:
                lost_texts.append(whole.strip())
        return lost_texts

    def has(self, words: set[str]) -> bool:
        """Return whether the words appear in the row or in the text that was last replaced there."""
        self._settle()
        return _similar(words, _words(self.text())) or any(
            _similar(words, _words(one)) for one, _ in self._lost[-1:]
        )

    def _list(self) -> list[str]:
        if isinstance(self.cells, str):
            self.cells = to_cells(self.cells)
        return self.cells

    def _replace(self, start: int, end: int, jump: int) -> None:
        """Record the text in the cells from `start` to `end`, which are about to be replaced."""
        own = self._list()
        text = "".join(own[start:end])
        if not text.strip():
            return
        if jump == self._jump and self._piece:
            self._piece += text if start == self._end else f" {text}"
        else:
            self._settle()
            self.updates += 1
            self._jump, self._whole = jump, "".join(own)
            before = _LETTERS_BEFORE.search("".join(own[max(0, start - _WORD_END) : start]))
            self._piece = (before[0] if before else "") + text
            self._start = start
        self._end, self._width = end, len(own)

    def _settle(self) -> None:
        """Keep the last replaced text, unless its words also appear in the text that replaced it."""
        if not self._piece:
            return
        own = self._list()
        end = min(self._end + _WORD_END, self._width)  # Cells added later are not part of the old text.
        after = _LETTERS.match("".join(own[self._end : end]))
        piece, self._piece = self._piece + (after[0] if after else ""), ""
        words = _words(piece)
        region = "".join(own[max(0, self._start - _WORD_END) : self._end + _WORD_END])
        if _similar(words, _words(region)):
            return
        if self._lost and _similar(_words(self._lost[-1][0]), words):
            self._lost[-1] = piece, self._whole
        elif len(self._lost) < MAX_REPLACED:
            self._lost.append((piece, self._whole))


def to_cells(text: str) -> list[str]:
    """Return one string per column: a character with its combining marks, or "" for the second column of a
    wide character."""
    if text.isascii():
        return list(text)
    cells: list[str] = []
    for one in text:
        if _joins(one):
            at = next((at for at in (-1, -2) if len(cells) >= -at and cells[at]), None)
            if at is not None and len(cells[at]) < _MAX_COMBINED:
                cells[at] += one
                continue
        cells.append(one)
        if one >= "\u1100" and unicodedata.east_asian_width(one) in "WF":
            cells.append("")
    return cells


def _joins(one: str) -> bool:
    """Return whether a character has no column of its own, because it joins the character before it."""
    return one >= "\u0300" and (
        unicodedata.category(one) in ("Mn", "Me", "Cf") or _JAMO.match(one) is not None
    )


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)}


def _similar(words: set[str], other_words: set[str]) -> bool:
    """Return whether at least half of the words in `words` are in `other_words`."""
    return len(words & other_words) * 2 >= len(words)
