"""A controller counts as Available when its latest version runs, not when an older one still does."""

from typing import Any

import pytest

from harness.provision.controllers.deployments import _why_not_available


def deployment(**status: Any) -> dict[str, Any]:
    available = {"type": "Available", "status": status.pop("available", "True"), "message": "too few"}
    counts = {"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, **status}
    return {
        "metadata": {"generation": 2},
        "spec": {"replicas": 1},
        "status": {**counts, "conditions": [available]},
    }


def test_one_that_runs() -> None:
    assert _why_not_available(deployment()) == ""


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"observedGeneration": 1}, "not observed"),
        ({"updatedReplicas": 0}, "0 of 1 pods are up to date; outdated pods: 1"),
        ({"replicas": 2}, "outdated pods: 1"),
        ({"available": "False"}, "too few"),
    ],
)
def test_one_that_does_not(status: dict[str, Any], reason: str) -> None:
    """An update whose image cannot be had leaves the old pod serving, and the Deployment Available."""
    assert reason in _why_not_available(deployment(**status))
