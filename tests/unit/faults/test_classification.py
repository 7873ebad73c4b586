"""`make test` injects one fault of each kind; `make faults` injects all."""

from __future__ import annotations

import pytest

from harness.faults.classification import family, outcome, ways
from harness.faults.fault_file import Fault, catalogue

INJECTED = [fault for fault in catalogue().values() if fault.expect is not None]
TESTED = [fault for fault in INJECTED if not fault.nightly]
FAULT = {"name": "f", "about": "A.", "target": "rank", "expect": {"verdict": "FAIL", "cause": "rank.crashed"}}


def test_make_test_goes_every_way_of_injecting():
    """Contract: no command at a moment, signal, change of a job, scope or target is nightly alone."""
    every = {way for fault in INJECTED for way in ways(fault)}
    assert every - {way for fault in TESTED for way in ways(fault)} == set()


def test_make_test_provokes_every_cause_family_and_outcome():
    """Contract: each family that a fault can provoke, and PASS, FAIL, UNKNOWN and a refusal."""
    assert {family(fault) for fault in INJECTED} - {family(fault) for fault in TESTED} == set()
    assert {outcome(fault) for fault in TESTED} == {"PASS", "FAIL", "UNKNOWN", "refused"}


def test_make_test_stays_small():
    """Contract: a new fault is nightly, or takes the place of another: `make test` has to leave room."""
    others = ("network", "acceptance", "training")
    assert len([fault for fault in TESTED if fault.target not in others]) <= 26
    assert len([fault for fault in TESTED if fault.target == "network"]) <= 10  # four pods without PyTorch
    assert len([fault for fault in TESTED if fault.target == "acceptance"]) <= 2
    trainings = [fault for fault in TESTED if fault.target == "training"]
    assert len([fault for fault in trainings if outcome(fault) != "refused"]) <= 1


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"inject": [{"kubectl": "get pods"}]}, {"rank: injected", "kubectl before the run"}),
        ({"at": {"log": "x"}, "inject": [{"signal": "KILL"}]}, {"rank: injected", "SIGKILL at a log line"}),
        (
            {"at": {"stage": "observe"}, "freeze": True, "inject": [{"sh": "true"}, {"sleep": 3}]},
            {"rank: injected", "sh at a stage, the harness frozen", "lasts for a time"},
        ),
        ({"job": {"worker": "faulty.py"}}, {"rank: changed", "job: worker"}),
        (
            {"job": {"worker": "faulty.py"}, "inject": [{"sh": "true"}]},
            {"rank: injected", "sh before the run"},
        ),
        ({"env": {"PATH": "/nowhere"}}, {"rank: changed", "environment of the harness"}),
    ],
)
def test_the_ways_of_a_fault(changes, found):
    """Contract: a change of the job counts where nothing else is injected."""
    assert ways(Fault(**{**FAULT, **changes})) == found | {"scope launch"}
