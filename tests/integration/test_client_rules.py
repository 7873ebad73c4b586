"""Check the rules in ground_truth/client_rules.py against the installed Pluto client and a real tracker."""

from __future__ import annotations

import math

import pytest
from client_values import NAMES, STEPS, VALUES
from tracker_server import Server, finished

from harness.tracker.client.audit import EmbeddedAudit
from harness.workers.ground_truth.client_rules import sent, sent_name


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], float]:
    """Return the points of client_values.py in the tracker, as a mapping from (name, step) to value."""
    server = Server(tmp_path_factory.mktemp("rules")).start()
    home = tmp_path_factory.mktemp("home")
    finished(server.pluto(home, script="client_values.py", PLUTO_RUN_ID="rules"), seconds=400)
    with server.client() as client:
        audit = EmbeddedAudit(client)
        runs = audit.runs(external_id="rules", project="e2e", job_name=None)
        points = audit.points([run.run_id for run in runs])
        found = {(point.metric, point.step): point.value for point in points}
    server.stop()
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_client_sends_the_name_from_the_rules(logged: dict[tuple[str, int], float], name: str) -> None:
    """Contract: the client sends exactly the names that the rules predict."""
    index = NAMES.index(name)
    assert logged[sent_name(name), 1000 + index] == float(index)
    assert [key for key in logged if key[1] == 1000 + index] == [(sent_name(name), 1000 + index)]


@pytest.mark.parametrize("label", VALUES)
def test_the_run_has_the_value_from_the_rules(logged: dict[tuple[str, int], float], label: str) -> None:
    """Contract: the run contains the last of the values that the rules predict, or none if the value is
    omitted."""
    outcome, seen = sent(VALUES[label]()), logged.get((f"value/{label}", 0))
    if not outcome.kept or not outcome.values:
        assert seen is None, outcome
        return
    assert seen is not None, outcome
    assert seen == outcome.values[-1] or (math.isnan(seen) and math.isnan(outcome.values[-1]))


@pytest.mark.parametrize("label", STEPS)
def test_a_step_is_a_whole_number_or_refused(logged: dict[tuple[str, int], float], label: str) -> None:
    """Contract: a step arrives as an integer, or the rules predict that it is rejected."""
    outcome = sent(1.0, STEPS[label])
    arrived = [step for metric, step in logged if metric == f"step/{label}"]
    assert arrived == ([int(STEPS[label])] if outcome.kept else [])
