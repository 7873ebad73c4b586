"""A tracker that fails is asked again, unless it is known that no answer can come."""

import httpx
import pytest

from harness.core.errors import HarnessError
from harness.tracker.client.retry import ask


def test_a_tracker_that_is_gone_is_not_waited_for() -> None:
    """Contract: the reason is the error's, at once."""
    reasons = iter(["the tracker is scaled to 0"])
    with (
        httpx.Client(base_url="http://127.0.0.1:1") as client,
        pytest.raises(HarnessError, match="scaled to 0") as raised,
    ):
        ask(client, "api/audit/runs", {}, 30, lambda: next(reasons))
    assert raised.value.cause == "tracker.unreachable"


def test_without_a_reason_it_is_asked_until_the_deadline() -> None:
    with httpx.Client(base_url="http://127.0.0.1:1") as client, pytest.raises(HarnessError) as raised:
        ask(client, "api/audit/runs", {}, 0.3, lambda: None)
    assert raised.value.cause == "tracker.unreachable"
