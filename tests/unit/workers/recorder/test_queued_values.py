"""What the recorder says about values that Pluto's client did not queue as they were passed to `run.log`."""

from __future__ import annotations

from typing import Any

import pytest

from harness.workers.recorder.queued_values import NOT_QUEUED, Account, Queued, leaves


def dropped(passed: dict[str, Any], metrics: dict[str, Any]) -> dict[str, str]:
    """Return the reason for each dropped name, after a call in which the client queued these metrics."""
    account, queued = Account(lambda entry: None), Queued()
    queued.metrics, queued.steps = metrics, [3]
    values = [leaf for name, value in passed.items() for leaf in leaves(name, value, lambda number: number)]
    account.close_call(values, queued, 3, "", None)
    entries, totals = account.frames()
    assert totals["handed"] == len(values) == account.logged + totals["left"]
    return {entry[0]: entry[2] for entry in entries}


@pytest.mark.parametrize(
    ("passed", "metrics", "reasons"),
    [
        ({"x": 1.0}, {"x": 1.0}, {}),
        (
            {"xé": 1.0, "xè": 2.0},
            {"x-": 2.0},
            {"xé": "the client gives this metric and another one the same name, 'x-'"},
        ),
        (
            {"x-": 1.0, "xè": 2.0},
            {"x-": 2.0},
            {"x-": "the client gives this metric and another one the same name, 'x-'"},
        ),
        ({"x": 1.0, "y": 2.0}, {"y": 2.0}, {"x": NOT_QUEUED}),
    ],
)
def test_a_value_that_was_not_queued_has_a_reason(
    passed: dict[str, Any], metrics: dict[str, Any], reasons: dict[str, str]
) -> None:
    """Contract: of two names that the client maps to one metric, the lost one is named with the metric."""
    assert dropped(passed, metrics) == reasons
