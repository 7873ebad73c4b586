"""Judge whether the points logged by an attached job's ranks were recorded."""

from __future__ import annotations

from collections.abc import Sequence

from harness.judge.case import Case, names
from harness.judge.finding import Finding, not_passed, passed, unknown
from harness.judge.points import attached_digests
from harness.judge.points.digest_records import PodRecord


def recorded(case: Case, pods: Sequence[PodRecord] | None) -> Finding:
    """Run the `recorded` check: a recorder ran in every rank, so the run's points can be compared.

    `pods` contains the injected recorders' records, or is None if no recorder was injected into any pod.
    """
    if not any(map(case.started, range(case.expected.num_nodes))):
        return unknown("recorded", "no rank is recorded as running")
    if pods is not None:
        return _admitted(case, pods)
    if not case.recorded:
        text = "nothing recorded what the ranks logged, so it is not known whether every point is in the run"
        return not_passed("recorded", "unification.not_recorded", text, advice=advice(case.launch.namespace))
    return _unread(case) or passed("recorded", f"{names(case.ranks)} recorded what they logged")


def _admitted(case: Case, pods: Sequence[PodRecord]) -> Finding:
    """Return the finding for a job with pods into which an admission policy injected the recorder."""
    absent = attached_digests.unrecorded(pods, case.ranks)
    if absent:
        return not_passed(
            "recorded",
            "unification.not_recorded",
            f"it is not known what {names(absent)} logged",
            details=[f"rank {rank}: {reason}" for rank, reason in absent.items()],
            ranks=absent,
            evidence=["objects/pod.jsonl"],
            advice="`harness recorder status` lists the containers that are not recorded, with the reason",
        )
    return _unread(case) or passed("recorded", f"{names(case.ranks)} recorded digests of what they logged")


def _unread(case: Case) -> Finding | None:
    """Return a finding if points were recorded but the tracker was not read. Otherwise, return None."""
    if case.bundle.summary is not None:
        return None
    text = "the ranks recorded what they logged, but the points in the tracker were not read"
    reason = case.manifest.unread.get("tracker", "")
    return not_passed(
        "recorded",
        "unification.not_recorded",
        text,
        why=[reason] if reason else [],
        advice=_NAME_IT if reason else "",
    )


_NAME_IT = "attach again with --tracker-url URL --project P --run RUN_ID --secret NAME"


def advice(namespace: str) -> str:
    """Return advice with the two commands that turn on recording for the next run in a namespace."""
    label = f"kubectl label namespace {namespace} pluto-e2e-harness/record=true"
    return f"to have the next run recorded: harness recorder install --namespace {namespace}; {label}"
