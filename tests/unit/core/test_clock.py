"""Times are read as the bundle writes them, and what is no time is none."""

import pytest

from harness.core.clock import now, seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:01Z", 1.0),
        ("1970-01-01T01:00:01.5+01:00", 1.5),
        ("1970-01-01T00:00:01", None),
        ("yesterday", None),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_seconds_parse_rfc_3339_times_with_a_zone(text, expected):
    """Contract: seconds since the epoch of an RFC 3339 time; a time without a zone is not known."""
    assert seconds(text) == expected


def test_now_is_read_back():
    """Contract: the time that the bundle writes is one that it reads."""
    assert seconds(now()) is not None
