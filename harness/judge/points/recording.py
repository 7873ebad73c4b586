"""Judge whether the points logged by an attached job's ranks were recorded."""

from __future__ import annotations

from harness.judge.case import Case, names
from harness.judge.finding import Finding, not_passed, passed, unknown


def recorded(case: Case) -> Finding:
    """Check `recorded`: a recorder ran in every rank, so the points in the run can be compared."""
    if not any(map(case.started, range(case.expected.num_nodes))):
        return unknown("recorded", "no rank is recorded as running")
    if not case.recorded:
        text = "nothing recorded what the ranks logged, so it is not known whether every point is in the run"
        return not_passed("recorded", "unification.not_recorded", text, advice=advice(case.launch.namespace))
    if case.bundle.summary is None:
        text = "the ranks recorded what they logged, but the points in the tracker were not read"
        return not_passed("recorded", "unification.not_recorded", text)
    return passed("recorded", f"{names(case.ranks)} recorded what they logged")


def advice(namespace: str) -> str:
    """Return advice with the two commands that enable recording for the next run in a namespace."""
    label = f"kubectl label namespace {namespace} pluto-e2e-harness/record=true"
    return f"to have the next run recorded: harness recorder install --namespace {namespace}; {label}"
