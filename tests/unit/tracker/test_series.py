"""series.py: statistics of values as large as a float can be."""

from __future__ import annotations

import math
import sys
from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from harness.tracker.query import series

MOST = sys.float_info.max


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([MOST, -MOST]), min_size=1)
)
@example([MOST] * 3)
@example([MOST] * 7 + [-MOST] * 2)
@example([MOST] * 49)
def test_a_mean_is_no_error(values: list[float]) -> None:
    """Contract: the mean of finite values is finite, and right to a few of a float's last digits."""
    found = series.mean(values)
    exact = sum(map(Fraction, values)) / len(values)
    most = max(map(abs, values))
    assert math.isfinite(found)
    assert abs(Fraction(found) - exact) <= Fraction(most) * Fraction(1, 2**50)
