"""A job of others with more pods than those of which every log is read whole.

The test takes minutes of CPU time, so `pytest -m attach` does not select it.
"""

from __future__ import annotations

import pytest
from foreign_jobs import SECRET, ForeignJobs, passed, short

from harness.attach.tracker import TrackerOptions
from harness.attach.tracker_key import SecretKey

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]


def test_more_than_64_pods_are_judged(foreign: ForeignJobs, policy_installed: None) -> None:
    """Contract: every point of 66 ranks is found. Nothing shows that they met, because they do not use
    torch.distributed.
    """
    foreign.many("many", 66)
    foreign.ended("many", 600)
    outcome = foreign.attach("job/many", tracker=TrackerOptions(secret=SecretKey(SECRET)))
    assert short(outcome) == ("UNKNOWN", "run.evidence_missing", []), outcome.verdict
    assert "rendezvous" not in passed(outcome.verdict)
    (points,) = [check for check in outcome.verdict.checks if check.name == "no-lost-points"]
    assert "All 3300 points of the ranks" in points.explanation
