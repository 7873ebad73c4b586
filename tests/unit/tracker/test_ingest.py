"""ingest.py: lines as Pluto's ingest takes them, one after another up to the first bad one."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.tracker.storage import ingest_lines

GOOD = b'{"time": 5, "step": 1, "data": {"a": 1.5}}'


def test_numbers_that_json_does_not_know() -> None:
    line = b'{"time": 5, "step": 1, "data": {"n": NaN, "i": Infinity, "m": -Infinity, "big": %d}}' % (10**30)
    values = {row[0]: row[3] for row in ingest_lines.read(line, ingest_lines.point_rows).rows}
    assert math.isnan(values["n"])
    assert (values["i"], values["m"], values["big"]) == (math.inf, -math.inf, 1e30)


@pytest.mark.parametrize(
    "bad",
    [
        b"not json",
        b"[]",
        b'{"time": 5, "step": -1, "data": {}}',
        b'{"time": 5, "step": 1.5, "data": {}}',
        b'{"time": 5, "step": true, "data": {}}',
        b'{"time": 5, "data": {"a": 1}}',
        b'{"time": 5, "step": 1, "data": {"a": "1"}}',
        b'{"time": 5, "step": 1, "data": {"a": true}}',
        b'{"time": 5, "step": 1, "data": {"a": "Inf"}}',
        b'{"time": 5, "step": 1, "data": {" ": 1}}',
        b'{"time": 5, "step": 1, "data": {"' + b"n" * 1025 + b'": 1}}',
        b'{"time": 5, "step": ' + b"1" * 5000 + b', "data": {"a": 1}}',
        b'{"time": 5, "step": 1, "data": {"\xed\xa0\x80": 1}}',
        b'{"time": 5, "step": 1, "data": {"a": 1' + b"0" * 400 + b"}}",
        b'{"time": 5, "step": 1, "data": [1]}',
        b'{"time": 5, "step": 9223372036854775808, "data": {}}',
        b'{"time": 5, "step": 1, "data": {}, "rank": 3}',
        b'{"time": 5, "step": 1, "data": {"\\ud800": 1}}',
        b"\xff\xfe{}",
        b"[" * 100_000,
    ],
)
def test_bad_line_ends_request_and_earlier_lines_stay(bad: bytes) -> None:
    found = ingest_lines.read(b"\n".join([GOOD, b"", bad, GOOD]), ingest_lines.point_rows)
    assert found.rows == [("a", 1, 5, 1.5)]
    assert found.lines == 1
    assert found.error is not None
    assert found.error.startswith("line 3: ")


@pytest.mark.parametrize(
    ("written", "meant"),
    [(b"null", math.nan), (b'"NaN"', math.nan), (b'"Infinity"', math.inf), (b'"-Infinity"', -math.inf)],
)
def test_what_json_has_no_number_for_is_taken(written: bytes, meant: float) -> None:
    """Contract: other languages write it as null or as a word; the rest of the request stays."""
    line = b'{"time": 5, "step": 1, "data": {"a": ' + written + b', "b": 1}}'
    found = ingest_lines.read(line, ingest_lines.point_rows)
    assert found.error is None
    assert [repr(row[3]) for row in found.rows] == [repr(meant), "1.0"]


NAMES = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda name: name.strip())


@given(st.dictionaries(NAMES, st.floats(), max_size=5))
def test_what_the_client_writes_is_read_back(data: dict[str, float]) -> None:
    """The client writes each line with json.dumps, so names are escaped and NaN is bare."""
    line = json.dumps({"time": 1, "step": 2, "data": data}).encode()
    found = ingest_lines.read(line + b"\n", ingest_lines.point_rows)
    assert found.error is None
    assert [row[:3] for row in found.rows] == [(name, 2, 1) for name in data]
    for (*_, value), sent in zip(found.rows, data.values(), strict=True):
        assert value == sent or (math.isnan(value) and math.isnan(sent))


TOKENS = st.sampled_from(
    [
        *(
            '{"time": 1, "step": 2, "data": {',
            "}}",
            '{"time":',
            ', "step":',
            ', "data": {',
            "}",
            '"a": ',
            '"b":',
        ),
        *("1", "-0", "-0.0", "1.0", "1e400", "1" + "0" * 400, "9223372036854775808", "18446744073709551617"),
        *(
            "0.1",
            "1e-400",
            "5e-324",
            "2.2250738585072011e-308",
            "NaN",
            "-Infinity",
            '"NaN"',
            "null",
            "true",
            "01",
        ),
        *(
            '"\\ud800": ',
            '"\\ud83d\\ude00": ',
            '"\\u0000": ',
            '"\x7f": ',
            '"\x1f": ',
            '" ": ',
            '"": ',
            '"time": ',
        ),
        *(
            "\n",
            "\n\n",
            "\r\n",
            " ",
            "\t",
            "\x0c",
            ", ",
            "[",
            "]",
            '"',
            "\\",
            "\u2028",
            "\ufeff",
            ' "rank": 1',
        ),
        '{"time": 5, "step": 1, "data": {"a": 1.5}}',
    ]
)
NUMBERS = (
    st.floats().map(repr)
    | st.integers(-(10**30), 10**30).map(str)
    | st.from_regex(r"-?[0-9]{1,25}(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
)
BODIES = (
    st.lists(TOKENS, max_size=20).map("".join).map(str.encode)
    | NUMBERS.map(lambda number: f'{{"time": 1, "step": 2, "data": {{"a": {number}}}}}'.encode())
    | st.tuples(NUMBERS, NUMBERS).map(
        lambda two: f'{{"time": {two[0]}, "step": {two[1]}, "data": {{"a": 1}}}}'.encode()
    )
    | st.binary(max_size=30).map(lambda name: b'{"time": 1, "step": 2, "data": {"' + name + b'": 1}}')
)


@given(st.lists(BODIES, max_size=4).map(b"\n".join))
def test_the_native_parser_decides_as_the_one_door(body: bytes) -> None:
    """Contract: the same rows to the last bit, the same lines, and the same refusal in the same words."""
    slow, quick = ingest_lines.read(body, ingest_lines.point_rows), ingest_lines.read_points(body)
    rows = [(*row[:3], row[3].hex()) for row in slow.rows]
    assert [(*row[:3], row[3].hex()) for row in quick.block.rows()] == rows
    assert (quick.lines, quick.error) == (slow.lines, slow.error)
