"""Compute the lines that a terminal would show for a program's output, without control characters.

The terminal is a screen of COLUMNS columns and ROWS rows, in which the cursor can move. Rows that scroll off
this screen are returned and never change again. Memory is bounded by the screen size, and time is linear in
the input size.

The result contains two things that a terminal's screen does not show:

- Each row counts how often its text was replaced, as happens with a progress bar.
- If replaced text contains words that appear neither in the final row nor in the next rows, such as an error
  message below a progress bar, the earlier text of the whole row is returned as a separate row.

Colours, titles and link targets are omitted. The module needs only the standard library, because the
tracker's image contains little else. (`pyte` also emulates a terminal, but it wraps each line at its screen
width, loses replaced text, and reads only 1 MB/s. The tests use it for comparison.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Generic

from harness.core.terminal_row import COLUMNS, Mark, Row, ScreenRow, to_cells

ROWS = 100
LONGEST = 1 << 20
"""The maximum length of a returned line in characters. A longer line is returned in several parts."""
_MAX_SEQUENCE = 1 << 20
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
        self._rows: list[ScreenRow[Mark]] = []
        self._at = self._column = 0
        self._home: int | None = None
        """The index of the row that contains the cursor's home position, or None before the first move to an
        absolute position."""
        self._saved_cursor = (0, 0)
        self._jumps = 0
        """The number of cursor movements so far. All text that is replaced between two movements counts as
        one update."""
        self._rest = ""
        self._after_text = False
        """Whether the last output was a character, which a control sequence can repeat."""
        self._joined: list[ScreenRow[Mark]] = []
        """The rows read so far of a line that is wider than the screen. They are joined into one line when
        they are returned."""
        self._before = ""

    def write(self, text: str, mark: Mark) -> Iterator[Row[Mark]]:
        """Process part of the output. `mark` is any value that the caller associates with this part, such as
        its time."""
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
        self._home, self._after_text = None, False

    def _is_simple(self, text: str) -> bool:
        """Return whether a string is a short line without control characters that would only fill the empty
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
        """Process a simple line with the same result as `_write_line`, but several times faster.

        In most logs, most lines are simple.
        """
        self._rows[-1].begin(text, mark)
        self._rows.append(ScreenRow("", mark))
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
        """Write a line with its line ending, or part of a line, to the screen."""
        is_complete = line.endswith("\n")
        body = line[:-1] if is_complete else line
        row = self._row(mark)
        if self._column == 0 and self._at == len(self._rows) - 1 and row.blank and _PLAIN.match(body):
            if len(body) > COLUMNS:
                yield from self._scrolled(len(self._rows) - 1)
                for start in range(0, len(body) - COLUMNS, COLUMNS):
                    full_row = ScreenRow(body[start : start + COLUMNS], mark)
                    full_row.wrapped = True
                    yield from self._commit(full_row)
                body = body[(len(body) - 1) // COLUMNS * COLUMNS :]
                row = self._row(mark)
            row.begin(body, mark)
            self._column, self._after_text = row.width, bool(body)
        else:
            yield from self._write_tokens(body, mark)
        if is_complete:
            self._after_text = False
            yield from self._line_feed(mark, column=0)

    def _write_tokens(self, text: str, mark: Mark) -> Iterator[Row[Mark]]:
        for token in _TOKEN.finditer(text):
            kind = token.lastgroup
            if kind == "text":
                text = token["text"]
                while self._after_text and text and self._row(mark).join(self._column - 1, text[0]):
                    text = text[1:]
                yield from self._print(to_cells(text), mark)
                self._after_text = True
                continue
            if token["final"] == "b" and self._after_text:
                cells = self._row(mark).character(self._column - 1)
                count = int(token["values"][:6]) if token["values"][:6].isdecimal() else 1
                room = (COLUMNS - self._column) // len(cells)
                yield from self._print(cells * min(max(1, count), room), mark)
                continue
            self._after_text = False
            if token["final"] is not None:
                self._control(token["values"], token["final"], mark)
            elif kind in {"control", "escape"}:
                yield from self._character(token[0], mark)

    def _print(self, cells: list[str], mark: Mark) -> Iterator[Row[Mark]]:
        """Write cells at the cursor. At the end of a row, continue in the next row."""
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
            self._rows.append(ScreenRow("", mark))
            yield from self._scrolled(self._at if self._joined else len(self._rows) - ROWS)

    def _row(self, mark: Mark) -> ScreenRow[Mark]:
        if not self._rows:
            self._rows.append(ScreenRow("", mark))
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

    def _commit(
        self, row: ScreenRow[Mark], following: list[ScreenRow[Mark]] | None = None
    ) -> Iterator[Row[Mark]]:
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
        """Erase the text that was written after the cursor first moved to an absolute position.

        Text from before that move is kept.
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
                self._rows.append(ScreenRow("", mark))
            self._home = len(self._rows) - 1
        at = self._home + min(row, ROWS - 1)
        self._extend(at, self._home + ROWS, mark)
        self._jump(at, column)

    def _extend(self, at: int, limit: int, mark: Mark) -> None:
        """Append blank rows until there is a row with the index `at`, or until there are `limit` rows."""
        self._rows += [ScreenRow("", mark) for _ in range(len(self._rows), min(at + 1, limit))]


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
