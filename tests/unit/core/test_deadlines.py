"""Deadlines are ordered whatever the wait, so the inner one ends first and explains."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.deadlines import MIN_WAIT, Budget
from harness.core.errors import UsageError


@given(st.floats(MIN_WAIT, 1e6))
def test_deadlines_are_ordered_with_head_room(wait: float) -> None:
    budget = Budget(wait)
    assert 0 < budget.rendezvous < budget.rank < budget.job < budget.wait < budget.test(60)
    assert budget.wait - budget.job >= 15


def test_a_wait_without_head_room_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 60 s"):
        Budget(10)
