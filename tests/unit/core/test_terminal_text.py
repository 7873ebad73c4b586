"""What a terminal shows of a program's output: compared with pyte, and what pyte loses."""

from __future__ import annotations

import random
import time
import unicodedata
from collections.abc import Sequence

import pyte
import pytest

from harness.core import terminal_row, terminal_text
from harness.core.terminal_row import Row
from harness.core.terminal_text import Terminal


def rows(*pieces: str, live: bool = False) -> list[Row[int]]:
    terminal = Terminal[int](live)
    shown = [row for at, piece in enumerate(pieces) for row in terminal.write(piece, at)]
    return [*shown, *terminal.flush()]


def shown(*pieces: str) -> list[str]:
    return [row.text for row in rows(*pieces) if not row.replaced]


def bar(step: int, name: str = "train", most: int = 20_000) -> str:
    """A progress bar as tqdm writes it."""
    return (
        f"\r{name}: {100 * step // most:3}%|{'#' * (step * 10 // most):<10}| {step}/{most} [00:01, 9.1it/s]"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain\n", ["plain"]),
        ("no end", ["no end"]),
        ("\n\nafter two\n", ["", "", "after two"]),
        ("windows\r\nlines\r\n", ["windows", "lines"]),
        ("12345\rabc\n", ["abc45"]),
        ("\x1b[1;31mred\x1b[0m and \x1b[38;2;1;2;3mrgb\x1b[m\n", ["red and rgb"]),
        ("\x1b]0;a title\x07text\n", ["text"]),
        ("\x1b]8;;https://example.org\x1b\\a link\x1b]8;;\x1b\\ here\n", ["a link here"]),
        ("\x1bPq#0;2;0;0;0~-\x1b\\after sixel\n", ["after sixel"]),
        ("\x9b31mC1\x9b0m\x9d0;t\x9c end\n", ["C1 end"]),
        ("\x1b]never ended\nnext\n", ["never ended", "next"]),
        ("cut \x1b[38;5\nnext \x1b", ["cut ", "next "]),
        ("\x1b[?25l\x1b[2K\ron 0: Hello\n\x1b[?25h", ["on 0: Hello"]),
        ("12%\b\b\b34%\n", ["34%"]),
        ("a\tb\n", ["a       b"]),
        ("bell\x07 nul\x00 del\x7f\n", ["bell nul del"]),
        ("日本\rab語\n", ["ab語"]),
        ("日本\ra\n", ["a 本"]),
        ("e\u0301te\u0301 👩\u200d🔬\n", ["e\u0301te\u0301 👩\u200d🔬"]),
        ("broken \ufffd\ufffd\n", ["broken \ufffd\ufffd"]),
        ("one\ntwo\n\x1b[2Athree\x1b[K\n\x1b[1Btail\n", ["three", "two", "tail"]),
        ("abcdef\x1b[3D\x1b[1P!\n", ["abc!f"]),
        ("abcdef\x1b[4G\x1b[2@\n", ["abc  def"]),
        ("x\x1b[5Cy\x1b[s\x1b[1GX\x1b[uz\n", ["X     yz"]),
        ("\x1b(B\x1b)0\x1b=\x1b>keypad\n", ["keypad"]),
        # Public reports: xterm.js #2199, jupyter/notebook #1970, jupyterlab #4045, tqdm #565.
        ("#\x1b[5b\x1b[b!\x1b[0b\n", ["#######!!"]),
        ("e\u0301\x1b[2b日\x1b[b\n", ["e\u0301e\u0301e\u0301日日"]),
        ("\x1b[3bx\r\x1b[3by\n", ["y"]),
        ("x\x1b[999999999b\n", ["x" * 1024]),
        ("1\r2\r3\n", ["3"]),
        ("foo\r\r\nbar\r\r\n", ["foo", "bar"]),
        ("\u1112\u1161\u11ab글\rab\n", ["ab글"]),
        ("W 8: 0it\n\n\n\x1b[2A\rW 2: 1it\n\x1b[A\r\n\n\x1b[A\x1b[AW 2: 2it\n", ["W 8: 0it", "W 2: 2it", ""]),
    ],
)
def test_a_text_is_what_a_terminal_shows(text: str, expected: list[str]) -> None:
    assert shown(text) == expected
    assert shown(*text) == expected, "one character at a time"
    assert not any(one.isascii() and not one.isprintable() for line in shown(text) for one in line)


def test_progress_bar_is_one_row_with_number_of_updates() -> None:
    text = "".join(f"\x1b[32m{bar(step)}\x1b[0m" for step in range(2001)) + "\nTraceback\n"
    first, second = rows(text)
    assert first.text.startswith("train:  10%|#")
    assert "2000/20000" in first.text
    assert first.note == "2,000 updates left out"
    assert (second.text, second.note) == ("Traceback", "")


def test_nested_progress_bars_end_in_their_last_states() -> None:
    """tqdm moves the cursor down and up to draw its second bar."""
    text = bar(0, "outer")
    for step in range(1, 51):
        text += "\n" + bar(step, "inner") + "\x1b[A" + bar(step, "outer")
    first, second = rows(text + "\n\n")[:2]
    assert first.text == bar(50, "outer")[1:]
    assert second.text == bar(50, "inner")[1:]
    assert (first.updates, second.updates) == (50, 49)


def test_a_message_between_updates_does_not_repeat_the_bar() -> None:
    """`tqdm.write` erases the bar, writes the message, and draws the bar again."""
    text = ""
    for step in range(20):
        text += bar(step) + "\r" + " " * 60 + f"\rloss of step {step}\n"
    found = rows(text + bar(20) + "\n")
    assert [row.text for row in found[:-1]] == [f"loss of step {step}" for step in range(20)]
    assert sum(row.updates for row in found) == 20


def test_an_error_below_a_bar_is_not_lost() -> None:
    text = f"{bar(1)}\rCUDA out of memory on gpu 3{bar(2)}{' ' * 20}{bar(3)}\n"
    first, second = rows(text)
    assert (first.text[:13], first.note) == ("CUDA out of m", "replaced by later output")
    assert "memory" in first.text
    assert "3/20000" in second.text


def test_redrawn_screen_is_kept_once_below_earlier_output() -> None:
    frames = "".join(f"\x1b[2J\x1b[Hepoch {n}\nloss {n / 8}\n" for n in range(100))
    found = rows("started\n", frames)
    assert [row.text for row in found] == ["started", "epoch 99", "loss 12.375"]
    assert [row.first for row in found] == [0, 1, 1]


def test_rows_have_marks_of_output_that_changed_them() -> None:
    first, second = rows("123\n", "two\n", "\x1b[2Aand", "\n\n")
    assert (first.text, first.first, first.last) == ("and", 0, 2)
    assert (second.text, second.first, second.last) == ("two", 1, 1)


def test_live_rows_are_returned_when_they_are_complete() -> None:
    """A nested bar is returned once at first and once at its end, an error in its place at once."""
    terminal = Terminal[int](live=True)
    assert [row.text for row in terminal.write("first\nsecond", 0)] == ["first"]
    assert [row.text for row in terminal.write(f"\n{bar(1)}\n", 1)] == ["second", bar(1)[1:]]
    for step in range(2, 100):
        assert list(terminal.write(f"\x1b[A{bar(step)}\n", step)) == []
    assert [row.text for row in terminal.write("\x1b[A\x1b[KRuntimeError: boom\n", 100)] == [
        "RuntimeError: boom"
    ]
    end = list(terminal.flush())
    assert [(row.text, row.replaced) for row in end] == [(bar(99)[1:], True)]


def test_long_lines_stay_whole_up_to_a_limit() -> None:
    words = " ".join(f"word{n}" for n in range(100_000))
    assert shown(words + "\nend\n") == [words, "end"]
    coloured = words.replace("word7", "\x1b[31mword7\x1b[m")
    assert shown(coloured + "\n") == [words]
    parts = shown("x" * (3 * terminal_text.LONGEST) + "\n")
    assert "".join(parts) == "x" * (3 * terminal_text.LONGEST)
    assert max(map(len, parts)) <= terminal_text.LONGEST + terminal_row.COLUMNS


ALPHABET = (
    *("a", "bc", "word ", "\r", "\n", "\r\n", "\b", "\t", "\x1b[K", "\x1b[1K", "\x1b[2K"),
    *("\x1b[A", "\x1b[2B", "\x1b[3C", "\x1b[2D", "\x1b[5G", "\x1b[31m", "\x1b[0m", "\x1b[2P", "\x1b[3X"),
    *("\x1b[2@", "\x1b]0;t\x07", "\x1b[?25l", "\x1b[F", "\x1b[E", "longer text "),
)


def test_random_output_looks_as_on_pyte() -> None:
    """Contract: 150 random outputs, with pyte as the reference. A line feed also returns, as in a log.

    pyte raises an error for wide characters that are overwritten in part; the cases above have them.
    """
    screen = pyte.Screen(300, 45)
    for seed in range(150):
        dice = random.Random(seed)
        text = "".join(dice.choice(ALPHABET) for _ in range(dice.randrange(1, 40)))
        screen.reset()
        screen.set_mode(pyte.modes.LNM)
        pyte.Stream(screen).feed(text)
        assert lines(shown(text)) == lines(screen.display), repr(text)


def lines(found: Sequence[str]) -> list[str]:
    """Return lines without blanks at their ends, and without blank lines at the end."""
    return "\n".join(unicodedata.normalize("NFC", line).rstrip() for line in found).rstrip("\n").split("\n")


@pytest.mark.parametrize(
    "unit",
    [
        *("\rx", "\x1b]", "\x9d", "\x1b[Ax\n", "\x1b[2J", "\x1b[100;1H\n", "\rabc\rxyz", "e\u0301\u0301"),
        *(
            "\x1b[2K\x1b[999Cx",
            "\x1b[1K\x1b[999C",
            "\x1b[P\x1b[@",
            "z\x1b[m",
            "\b \b",
            "\x1bP",
            "word \rother \r",
            "x\x1b[1000b\r",
        ),
    ],
)
def test_time_grows_with_the_input(unit: str) -> None:
    """Contract: eight times the input takes less than 32 times the processor's time."""

    def seconds(count: int) -> float:
        text = "y" * 2000 + unit * count
        began = time.process_time()
        for _ in rows(text):
            pass
        return time.process_time() - began

    assert seconds(4000) < 32 * max(seconds(500), 0.005)


def test_the_rows_of_a_text_are_described() -> None:
    assert [row.described for row in terminal_text.rows("no controls")] == ["no controls"]
    text = "\x1b[31mred\x1b[0m\nbar 1\rbar 2"
    assert [row.described for row in terminal_text.rows(text)] == ["red", "bar 2 (1 update left out)"]
    text = "ValueError: bad shard 7 of 9\r 20%|# | 2/10"
    whole = "ValueError: bad shard 7 of 9 (replaced by later output)"
    assert next(row.described for row in terminal_text.rows(text)) == whole
    text = "anchor: ok\b\bfailed\n"
    assert [row.described for row in terminal_text.rows(text)] == ["anchor: failed (1 update left out)"]
