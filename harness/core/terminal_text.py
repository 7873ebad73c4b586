"""Compute the lines that a terminal would show for a program's output, without control characters.

The terminal is a screen of COLUMNS columns and ROWS rows, in which the cursor can move. Rows that scroll off
this screen are returned and never change again. Memory is bounded by the screen size, and time is linear in
the input size.

The result contains two things that a terminal's screen does not show:

- Each row counts how often its text was replaced, as happens with a progress bar.
- Replaced text is returned as a separate row if it contains words that appear neither in the final row nor in
  the next rows, such as an error message below a progress bar.

Colours, titles and link targets are omitted. The module needs only the standard library, because the
tracker's image contains little else. (`pyte` also emulates a terminal, but it wraps each line at its screen
width, loses replaced text, and reads only 1 MB/s. The tests use it for comparison.)
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

Mark = TypeVar("Mark")

COLUMNS = 1024
ROWS = 100
LONGEST = 1 << 20
"""The maximum length of a returned line in characters. A longer line is returned in several parts."""
MAX_REPLACED = 50
"""The maximum number of replaced texts that are kept for each row."""
_MAX_SEQUENCE = 1 << 20
_WORD_END = 64
"""The number of characters before and after a replaced text that are searched for the rest of its first and
last words."""
_MAX_COMBINED = 16
_CONTROLS = r"\x00-\x1f\x7f-\x9f"
_STRING = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])"
"""Matches the introducer of a control string, such as a window title: OSC, DCS, SOS, PM or APC."""
_TOKEN = re.compile(
    rf"(?P<text>[^{_CONTROLS}]+)"
    r"|(?:\x1b\[|\x9b)(?P<values>[0-?]*+)[ -/]*+(?P<final>[@-~]?)"
    rf"|{_STRING}[^{_CONTROLS}]*+(?:\x07|\x1b\\|\x9c)|{_STRING}"
    r"|\x1b[ -/]+[0-~]|\x1b(?P<escape>[0-Z\\`-~])|(?P<control>.)",
    re.DOTALL,
)
_UNFINISHED = re.compile(rf"(?:\x1b|(?:\x1b\[|\x9b)[0-?]*[ -/]*|\x1b[ -/]+|{_STRING}[^{_CONTROLS}]*\x1b?)\Z")
_PLAIN = re.compile(rf"[^{_CONTROLS}]*\Z")
_SIMPLE = re.compile(rf"[^{_CONTROLS}]*\n\Z")
_MOVES = frozenset("ABCDEFGHadef`")
_WORD = re.compile(r"[^\W\d_]{3,}")
_LETTERS = re.compile(r"[^\W\d_]*")
_LETTERS_BEFORE = re.compile(r"[^\W\d_]*\Z")


class Row(NamedTuple, Generic[Mark]):
    """A line as a terminal shows it. `first` and `last` are the marks that were passed to `write` with the
    first and the last output that changed the line."""

    text: str
    first: Mark
    last: Mark
    updates: int = 0
    """The number of times that text in the row was replaced by other text."""
    replaced: bool = False
    """Whether the terminal no longer shows this text, because other text replaced it."""

    @property
    def note(self) -> str:
        """Return a note about text that the terminal no longer shows, or ""."""
        if self.replaced:
            return "replaced by later output"
        return f"{self.updates:,} update{'s' if self.updates != 1 else ''} left out" if self.updates else ""

    @property
    def described(self) -> str:
        """Return the text, followed by the note in parentheses if there is one."""
        return f"{self.text} ({self.note})" if self.note else self.text


_HIDDEN = {
    **{code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)},
    0x7F: 0x2421,
    **dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD),
}
"""Maps control characters (except tab and newline), and characters that change the direction of the text, to
a visible character."""


def printable(text: str) -> str:
    """Return the text with a visible character for each control character.

    Messages quote text from pods, logs and Events. Without this function, such text could clear the screen or
    fake a verdict in the reader's terminal (as in CVE-2021-25743 in kubectl).
    """
    return text if text.isascii() and text.isprintable() else text.translate(_HIDDEN)


def rows(text: str) -> list[Row[None]]:
    """Return the rows that a terminal would show for a program's output, and the replaced texts."""
    if _PLAIN.match(text):
        return [Row(text, None, None)]
    terminal = Terminal[None]()
    return [*terminal.write(text, None), *terminal.flush()]


class Terminal(Generic[Mark]):
    """Processes a program's output incrementally, and returns the rows that can no longer change.

    If `live` is set, a row is returned as soon as it is complete. If a returned row changes, it is returned
    again once it can no longer change.
    """

    def __init__(self, live: bool = False) -> None:
        self._live = live
        self._rows: list[_Row[Mark]] = []
        self._at = self._column = 0
        self._home: int | None = None
        """The index of the row that contains the cursor's home position, or None before the first move to an
        absolute position."""
        self._saved_cursor = (0, 0)
        self._jumps = 0
        """The number of cursor movements so far. All text that is replaced between two movements counts as
        one update."""
        self._rest = ""
        self._joined: list[_Row[Mark]] = []
        """The rows so far of a line that is wider than the screen, to be joined into one returned line."""
        self._before = ""

    def write(self, text: str, mark: Mark) -> Iterator[Row[Mark]]:
        """Process a piece of output.

        `mark` is any value that the caller associates with this piece, such as its time.
        """
        if self._is_simple(text):
            yield from self._simple(text[:-1], mark)
            return
        text, self._rest = self._rest + text, ""
        start = len(text) if text.endswith("\n") else _unfinished(text)
        text, self._rest = text[:start], text[start:]
        for line in _lines(text):
            yield from self._write_line(line, mark)

    def flush(self) -> Iterator[Row[Mark]]:
        """Return the remaining rows. Call this at the end of the output."""
        rest, self._rest = self._rest, ""
        if rest and self._rows:
            yield from self._write_line(rest, self._rows[-1].last)
        if self._rows and self._rows[-1].blank and not self._rows[-1].updates:
            del self._rows[-1]
        yield from self._scrolled(len(self._rows))
        yield from self._join()
        self._at = self._column = 0
        self._home = None

    def _is_simple(self, text: str) -> bool:
        """Return whether a string is a short line without control characters, and would only fill the empty
        last row."""
        return (
            text.endswith("\n")
            and len(text) <= COLUMNS
            and _SIMPLE.match(text) is not None
            and not (self._column or self._live or self._rest or self._joined)
            and self._at == len(self._rows) - 1
            and not self._rows[-1].cells
        )

    def _simple(self, text: str, mark: Mark) -> Iterator[Row[Mark]]:
        """Process a simple line like `_write_line`, but several times faster.

        In most logs, most lines are simple.
        """
        self._rows[-1].begin(text, mark)
        self._rows.append(_Row("", mark))
        self._at, self._jumps = self._at + 1, self._jumps + 1
        if len(self._rows) <= ROWS:
            return
        row = self._rows[0]
        if row.updates or row.wrapped or self._home is not None or row.shown is not None:
            yield from self._scrolled(1)
            return
        del self._rows[0]
        self._at -= 1
        self._saved_cursor = max(0, self._saved_cursor[0] - 1), self._saved_cursor[1]
        self._before = row.text()
        yield Row(self._before, row.first, row.last)

    # -- process lines of output -----------------------------------------------------------------------------
    def _write_line(self, line: str, mark: Mark) -> Iterator[Row[Mark]]:
        """Process a line with its line ending, or part of a line."""
        is_complete = line.endswith("\n")
        body = line[:-1] if is_complete else line
        row = self._row(mark)
        if self._column == 0 and self._at == len(self._rows) - 1 and row.blank and _PLAIN.match(body):
            if len(body) > COLUMNS:
                yield from self._scrolled(len(self._rows) - 1)
                for start in range(0, len(body) - COLUMNS, COLUMNS):
                    full_row = _Row(body[start : start + COLUMNS], mark)
                    full_row.wrapped = True
                    yield from self._commit(full_row)
                body = body[(len(body) - 1) // COLUMNS * COLUMNS :]
                row = self._row(mark)
            row.begin(body, mark)
            self._column = row.width
        else:
            yield from self._write_tokens(body, mark)
        if is_complete:
            yield from self._line_feed(mark, column=0)

    def _write_tokens(self, text: str, mark: Mark) -> Iterator[Row[Mark]]:
        for token in _TOKEN.finditer(text):
            kind = token.lastgroup
            if kind == "text":
                cells = _cells(token["text"])
                start = 0
                while start < len(cells):
                    if self._column >= COLUMNS:
                        self._row(mark).wrapped = last = self._at == len(self._rows) - 1
                        yield from self._line_feed(mark, column=0)
                        yield from self._scrolled(self._at if last else 0)
                    part = cells[start : start + COLUMNS - self._column]
                    self._row(mark).put(self._column, part, self._jumps, mark)
                    self._column += len(part)
                    start += len(part)
            elif token["final"] is not None:
                self._control(token["values"], token["final"], mark)
            elif kind in {"control", "escape"}:
                yield from self._character(token[0], mark)

    def _character(self, text: str, mark: Mark) -> Iterator[Row[Mark]]:
        match text:
            case "\r":
                self._jump(self._at, 0)
            case "\b":
                self._jump(self._at, self._column - 1)
            case "\t":
                self._column = min(COLUMNS - 1, (self._column // 8 + 1) * 8)
            case "\n" | "\x0b" | "\x0c" | "\x84" | "\x1bD":
                yield from self._line_feed(mark, column=self._column)
            case "\x85" | "\x1bE":
                yield from self._line_feed(mark, column=0)
            case "\x8d" | "\x1bM":
                self._jump(self._at - 1, self._column)
            case "\x1b7":
                self._saved_cursor = self._at, self._column
            case "\x1b8":
                self._jump(*self._saved_cursor)
            case "\x1bc":
                self._clear_screen(mark)
            case _:
                pass

    def _line_feed(self, mark: Mark, column: int) -> Iterator[Row[Mark]]:
        """Move the cursor to the next row.

        If a row must be added at the end, the first row scrolls off the screen.
        """
        row = self._row(mark)
        if self._live and not (row.wrapped or self._joined) and (complete := row.complete()) is not None:
            yield complete
        self._at += 1
        self._column, self._jumps = column, self._jumps + 1
        if self._at == len(self._rows):
            self._rows.append(_Row("", mark))
            yield from self._scrolled(self._at if self._joined else len(self._rows) - ROWS)

    def _row(self, mark: Mark) -> _Row[Mark]:
        if not self._rows:
            self._rows.append(_Row("", mark))
        return self._rows[self._at]

    def _scrolled(self, count: int) -> Iterator[Row[Mark]]:
        """Remove and return the first `count` rows, which scroll off the screen."""
        for at in range(count):
            yield from self._commit(self._rows[at], self._rows[at + 1 : at + 3])
        if count > 0:
            del self._rows[:count]
            self._at = max(0, self._at - count)
            self._saved_cursor = max(0, self._saved_cursor[0] - count), self._saved_cursor[1]
            self._home = None if self._home is None else max(0, self._home - count)

    def _commit(self, row: _Row[Mark], following: list[_Row[Mark]] | None = None) -> Iterator[Row[Mark]]:
        for text in row.lost(self._before, following or []):
            yield Row(text, row.first, row.last, replaced=True)
        self._before = row.text()
        self._joined.append(row)
        if not row.wrapped or len(self._joined) * COLUMNS >= LONGEST:
            yield from self._join()

    def _join(self) -> Iterator[Row[Mark]]:
        rows, self._joined = self._joined, []
        if not rows:
            return
        text, updates = "".join(row.text() for row in rows), sum(row.updates for row in rows)
        if rows[0].shown != text:
            yield Row(text, rows[0].first, rows[-1].last, updates)

    # -- process control sequences ---------------------------------------------------------------------------
    def _jump(self, at: int, column: int) -> None:
        self._at = min(max(0, at), max(0, len(self._rows) - 1))
        self._column = min(max(0, column), COLUMNS - 1)
        self._jumps += 1

    def _control(self, values: str, final: str, mark: Mark) -> None:
        """Process a control sequence (CSI). Colours and modes have no effect."""
        if values[:1] in ("<", "=", ">", "?"):
            return
        numbers = [int(one[:6]) if one[:6].isdecimal() else 0 for one in values[:100].split(";")]
        if final in _MOVES:
            self._move(final, max(1, numbers[0]), max(1, *numbers[1:2], 1), mark)
            return
        first, count = numbers[0], max(1, numbers[0])
        row = self._row(mark)
        match final:
            case "s":
                self._saved_cursor = self._at, self._column
            case "u":
                self._jump(*self._saved_cursor)
            case "K":
                row.erase(*_range(first, self._column), self._jumps, mark)
            case "X":
                row.erase(self._column, self._column + count, self._jumps, mark)
            case "P":
                row.delete(self._column, count, self._jumps, mark)
            case "@":
                row.insert(self._column, count, mark)
            case "J":
                self._erase_screen(first, mark)
            case _:
                pass

    def _move(self, final: str, count: int, second: int, mark: Mark) -> None:
        match final:
            case "A" | "F":
                self._jump(self._at - count, 0 if final == "F" else self._column)
            case "B" | "E" | "e":
                self._extend(self._at + count, ROWS, mark)
                self._jump(self._at + count, 0 if final == "E" else self._column)
            case "C" | "a":
                self._jump(self._at, self._column + count)
            case "D":
                self._jump(self._at, self._column - count)
            case "G" | "`":
                self._jump(self._at, count - 1)
            case _:
                self._move_to(count - 1, self._column if final == "d" else second - 1, mark)

    def _erase_screen(self, kind: int, mark: Mark) -> None:
        if kind in (2, 3):
            self._clear_screen(mark, move=False)
            return
        self._row(mark).erase(*_range(kind, self._column), self._jumps, mark)
        above = [] if self._home is None else self._rows[self._home : self._at]
        for row in self._rows[self._at + 1 :] if kind == 0 else above:
            row.erase(0, COLUMNS, self._jumps, mark)

    def _clear_screen(self, mark: Mark, move: bool = True) -> None:
        """Erase the text written since the first cursor movement to an absolute position.

        Earlier text is kept.
        """
        if self._home is None:
            self._move_to(0, 0, mark)
            return
        for row in self._rows[self._home :]:
            row.erase(0, COLUMNS, self._jumps, mark)
        if move:
            self._jump(self._home, 0)

    def _move_to(self, row: int, column: int, mark: Mark) -> None:
        """Move the cursor to an absolute position.

        The first such move begins a new screen below all previous output.
        """
        if self._home is None:
            if not self._row(mark).blank or self._at != len(self._rows) - 1:
                self._rows.append(_Row("", mark))
            self._home = len(self._rows) - 1
        at = self._home + min(row, ROWS - 1)
        self._extend(at, self._home + ROWS, mark)
        self._jump(at, column)

    def _extend(self, at: int, limit: int, mark: Mark) -> None:
        """Append blank rows until there is a row with the index `at`, or until there are `limit` rows."""
        self._rows += [_Row("", mark) for _ in range(len(self._rows), min(at + 1, limit))]


class _Row(Generic[Mark]):
    """A row of the screen, as one string per column. A wide character is followed by an empty string."""

    __slots__ = ("_end", "_jump", "_lost", "_piece", "_start", "cells", "first", "last", "shown", "updates",
                 "wrapped")  # fmt: skip

    def __init__(self, cells: str, mark: Mark) -> None:
        self.cells: str | list[str] = cells
        self.first = self.last = mark
        self.updates = 0
        self.wrapped = False
        """Whether the line was wider than the screen and continues in the next row."""
        self.shown: str | None = None
        """The text of this row that `complete` has already returned, or None."""
        self._jump = -1
        self._piece = ""
        self._start = self._end = 0
        self._lost: list[str] = []

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
        """Return the row if it has not been returned yet or its words have changed since then, and otherwise
        None."""
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

    def lost(self, before: str, following: list[_Row[Mark]]) -> list[str]:
        """Return the replaced texts whose words appear neither in this row nor in the neighbouring rows."""
        self._settle()
        if not self._lost:
            return []
        own, above = _words(self.text()), _words(before)
        lost_texts = []
        for text in self._lost:
            words = _words(text)
            if _similar(words, own) or _similar(words, above):
                continue
            if later_row := next((row for row in following if row.has(words)), None):
                later_row.updates += self.updates  # A progress bar has moved to a later row.
                self.updates = 0
            else:
                lost_texts.append(text.strip())
        return lost_texts

    def has(self, words: set[str]) -> bool:
        """Return whether the words appear in the row or in the text that was last replaced there."""
        self._settle()
        return _similar(words, _words(self.text())) or any(
            _similar(words, _words(one)) for one in self._lost[-1:]
        )

    def _list(self) -> list[str]:
        if isinstance(self.cells, str):
            self.cells = _cells(self.cells)
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
            self._jump = jump
            before = _LETTERS_BEFORE.search("".join(own[max(0, start - _WORD_END) : start]))
            self._piece = (before[0] if before else "") + text
            self._start = start
        self._end = end

    def _settle(self) -> None:
        """Keep the last replaced text, unless its words also appear in the text that replaced it."""
        if not self._piece:
            return
        own = self._list()
        after = _LETTERS.match("".join(own[self._end : self._end + _WORD_END]))
        piece, self._piece = self._piece + (after[0] if after else ""), ""
        words = _words(piece)
        region = "".join(own[max(0, self._start - _WORD_END) : self._end + _WORD_END])
        if _similar(words, _words(region)):
            return
        if self._lost and _similar(_words(self._lost[-1]), words):
            self._lost[-1] = piece
        elif len(self._lost) < MAX_REPLACED:
            self._lost.append(piece)


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of a string with their line endings. Only a line feed ends a line."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start : end + 1]
        start = end + 1
    if start < len(text):
        yield text[start:]


def _unfinished(text: str) -> int:
    """Return the position of an incomplete escape sequence at the end of the text, or the text's length if
    there is none."""
    last = max(text.rfind(one) for one in "\x1b\x90\x98\x9b\x9d\x9e\x9f")
    for start in (text.rfind("\x1b", 0, max(0, last)), last):  # The last ESC can also end a control string.
        if start >= max(0, len(text) - _MAX_SEQUENCE) and _UNFINISHED.match(text, start):
            return start
    return len(text)


def _range(kind: int, column: int) -> tuple[int, int]:
    """Return the range of columns that an erase sequence with this parameter erases.

    `column` is the cursor's column.
    """
    return (column, COLUMNS) if kind == 0 else (0, min(column + 1, COLUMNS) if kind == 1 else COLUMNS)


def _cells(text: str) -> list[str]:
    """Return one string per column: a character with its combining marks, or "" for the second column of a
    wide character."""
    if text.isascii():
        return list(text)
    cells: list[str] = []
    for one in text:
        if one >= "\u0300" and unicodedata.category(one) in ("Mn", "Me", "Cf"):
            at = next((at for at in (-1, -2) if len(cells) >= -at and cells[at]), None)
            if at is not None and len(cells[at]) < _MAX_COMBINED:
                cells[at] += one
                continue
        cells.append(one)
        if one >= "\u1100" and unicodedata.east_asian_width(one) in "WF":
            cells.append("")
    return cells


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)}


def _similar(words: set[str], other_words: set[str]) -> bool:
    """Return whether at least half of the words in `words` are in `other_words`."""
    return len(words & other_words) * 2 >= len(words)
