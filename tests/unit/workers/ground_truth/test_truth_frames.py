"""The wire format carries every row bit by bit, and nothing that the launch's ranks did not write."""

import math

from hypothesis import given
from hypothesis import strategies as st

from harness.workers.ground_truth import truth_frames

NONCE = "n0nce"
FLOATS = st.floats(allow_nan=True, allow_infinity=True)


@given(FLOATS)
def test_a_value_survives_json(value):
    """Contract: decode_value(encode_value(x)) is x, NaN and infinities included."""
    back = truth_frames.decode_value(truth_frames.encode_value(value))
    assert back == value or (math.isnan(back) and math.isnan(value))


@given(
    st.text(max_size=40), st.lists(st.tuples(st.text(max_size=8), st.integers(0, 2**53), FLOATS), max_size=6)
)
def test_a_frame_is_found_behind_other_text(before, rows):
    """Contract: a frame is decoded wherever it stands on its line."""
    payload = {
        "k": "rows",
        "r": 1,
        "q": 0,
        "n": 0,
        "rows": [[m, s, truth_frames.encode_value(v)] for m, s, v in rows],
    }
    line = before.replace("@truth1", "") + truth_frames.encode(NONCE, payload)
    assert list(truth_frames.decode(NONCE, [line])) == [payload]


def test_a_frame_of_another_launch_is_no_truth():
    """Contract: a MAC of another nonce, or none at all, is skipped without an error."""
    line = truth_frames.encode("other", {"k": "end"})
    assert list(truth_frames.decode(NONCE, [line, line[:-1], "@truth1 AAAA 00", ""])) == []


@given(st.data())
def test_a_changed_frame_is_no_truth(data):
    """Contract: changing any character of a frame's body or MAC makes it no frame."""
    line = truth_frames.encode(NONCE, {"k": "end", "r": 0, "q": 3, "count": 1, "sha256": "ab", "metrics": {}})
    at = data.draw(st.integers(len(truth_frames.MARK), len(line) - 1))
    char = data.draw(st.sampled_from("0123456789abcdefXYZ").filter(lambda c: c != line[at]))
    assert list(truth_frames.decode(NONCE, [line[:at] + char + line[at + 1 :]])) == []


def test_digest_depends_on_order_step_and_value():
    """Contract: two lists of rows have one digest only if they are the same rows in the same order."""
    rows = [("a", 1, 1.0), ("a", 2, 1.0), ("b", 1, float("nan"))]
    digests = {
        truth_frames.digest(rows),
        truth_frames.digest(rows[::-1]),
        truth_frames.digest(rows[:2]),
        truth_frames.digest([("a", 1, 1.0000000000000002), *rows[1:]]),
    }
    assert len(digests) == 4
    assert truth_frames.digest(rows) == truth_frames.digest(iter(rows))
