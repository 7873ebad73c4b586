"""Markdown that the harness writes, read again by a parser of Markdown."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from harness.report.markdown import code, table, text

PARSER = MarkdownIt("commonmark").enable("table")
UNESCAPED = re.compile(r"\\.|(?P<pipe>\|)")
"""As GitHub's parser splits a row: of two backslashes the first one escapes the second."""
ANYTHING = st.text(
    st.sampled_from("ab \t|\\`*_<>&[]()#~@!-:\n\r\v\x85\u2028é") | st.characters(codec="utf-8")
)


def cells(lines: list[str]) -> list[str]:
    """What stands in the table's body, cell after cell."""
    tokens = PARSER.parse("\n".join(lines))
    body = [n for n, token in enumerate(tokens) if token.type == "td_open"]
    return [tokens[n + 1].content for n in body]


def shown(markdown: str) -> str:
    """The text that a reader sees; raises AssertionError where there is markup."""
    seen = {"text": "", "text_special": "", "softbreak": "\n", "html_inline": "\n"}
    (inline,) = [token for token in PARSER.parse(markdown) if token.type == "inline"]
    for token in inline.children or []:
        assert token.type in seen, token
        assert token.type != "html_inline" or token.content == "<br>", token
    return "".join(seen[token.type] or token.content for token in inline.children or [])


@given(st.integers(1, 5).flatmap(lambda n: st.lists(st.lists(ANYTHING, min_size=n, max_size=n), min_size=1)))
def test_a_row_has_as_many_cells_as_its_head(rows: list[list[str]]) -> None:
    """Contract: whatever stands in a cell, it ends neither the cell nor the row."""
    head = [f"c{n}" for n, _ in enumerate(rows[0])]
    lines = table(head, rows)
    assert len("\n".join(lines).splitlines()) == len(rows) + 2
    for line in lines[:-1]:
        assert sum(found["pipe"] is not None for found in UNESCAPED.finditer(line)) == len(head) + 1
    assert len(cells(lines)) == len(head) * len(rows)


@given(st.lists(st.text(st.sampled_from("ab |`\\\n")).filter(lambda cell: "\\|" not in cell), min_size=1))
def test_a_cell_says_what_was_put_into_it(row: list[str]) -> None:
    """Contract: every cell arrives where it was put, on one line."""
    lines = table(["c"] * len(row), [row])
    assert cells(lines) == [" ".join(cell.split()) for cell in row]


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("a | b", "| a \\| b |"),
        ("a\n  b\r\nc", "| a b c |"),
        ("a\\b", "| a\\b |"),
        ("a\\|b", "| a\\\\\\|b |"),
        ("`x || true`", "| `x \\|\\| true` |"),
        ("", "|  |"),
    ],
)
def test_what_is_escaped(cell: str, line: str) -> None:
    """Contract: pipes and line breaks, and backslashes only where they would undo that."""
    assert table(["c"], [[cell]]) == ["| c |", "| --- |", line, ""]


def test_without_rows_there_is_no_table() -> None:
    assert table(["c"], []) == []


@given(ANYTHING)
def test_text_is_no_markup(plain: str) -> None:
    """Contract: a reader sees the characters that were given, and its line breaks."""
    words = re.sub(r"[^\S\n]+", " ", re.sub(r"\s*[\r\n]\s*", "\n", plain.strip())).replace("\0", "\ufffd")
    if words:
        assert re.sub(r"[^\S\n]+", " ", shown("x" + text(plain) + "x")) == f"x{words}x"


@given(st.text(st.sampled_from("ab`| "), min_size=1).filter(lambda verbatim: verbatim.strip() == verbatim))
def test_code_is_verbatim(verbatim: str) -> None:
    """Contract: whatever backticks it has, it is one span."""
    (inline,) = [token for token in PARSER.parse(code(verbatim)) if token.type == "inline"]
    assert [(child.type, child.content) for child in inline.children or []] == [("code_inline", verbatim)]


def test_no_code_is_nothing() -> None:
    assert code("") == ""
