"""Judge whether a TorchrunJob's status was correct. Users and scripts rely on its phase."""

from __future__ import annotations

from typing import Final

from harness.core.clock import seconds
from harness.evidence.kubernetes.kinds import TORCHRUN_JOB
from harness.evidence.kubernetes.objects import ObjectState, mapping
from harness.judge.case import Case, condition, names
from harness.judge.finding import Finding, not_passed, passed, unknown
from harness.judge.pod_end import End

CHECK: Final = "job-status"
TOLERANCE = 3.0
"""Maximum difference, in seconds, between the times of two watch events that count as simultaneous."""
ENDS = {"Completed": ("Succeeded",), "Failed": ("Failed", "TimedOut", "Cancelled")}
"""The phases that the TorchrunJob can have in each terminal state of its JobSet."""


def check(case: Case, ends: dict[int, End]) -> Finding:
    """Run the `job-status` check: the TorchrunJob's phases agree with its pods and its JobSet."""
    states = [s for s in case.bundle.history(TORCHRUN_JOB.name) if s.name == case.launch.object_name]
    if not states:
        return not_passed(CHECK, "run.evidence_missing", "no state of the TorchrunJob was recorded")
    return _running_too_early(case, states) or _end(case, ends, states)


def _phase(state: ObjectState) -> str:
    return str(mapping(state.object, "status").get("phase") or "")


def _is(phase: str) -> str:
    return f"is {phase}" if phase else "has no phase"


def _wrong(text: str, refs: list[str]) -> Finding:
    return not_passed(CHECK, "run.status_wrong", text, evidence=refs)


def _running_too_early(case: Case, states: list[ObjectState]) -> Finding | None:
    """Return a finding if the job was Running before enough of its pods had started, or None.

    An elastic job needs `minNodes` pods. Other jobs need all their pods.
    """
    for state in states:
        if _phase(state) != "Running":
            continue
        spec, at = mapping(state.object, "spec"), (seconds(state.received_at) or 0.0) + TOLERANCE
        required = int(spec.get("minNodes") or case.expected.num_nodes)
        started_count = sum(
            any(
                mapping(pod_state.object, "status").get("phase") in ("Running", "Succeeded", "Failed")
                and (seconds(pod_state.received_at) or 0.0) <= at
                for pod in pods
                for pod_state in pod.history
            )
            for pods in case.pod_attempts.values()
        )
        if started_count < required:
            text = f"the TorchrunJob was Running when {started_count} of {required} pods had started"
            return _wrong(text, [state.ref])
    return None


def _end(case: Case, ends: dict[int, End], states: list[ObjectState]) -> Finding:
    last = states[-1]
    phase, completed = (
        _phase(last),
        next((s for s in states if mapping(s.object, "status").get("completionTime")), None),
    )
    failed = [end.index for end in ends.values() if end.state == "failed"]
    if phase == "Succeeded" and failed:
        ranks = sorted(rank for end in ends.values() if end.state == "failed" for rank in end.ranks)
        text = f"the TorchrunJob is Succeeded, but {names(ranks)} failed"
        return not_passed(CHECK, "run.status_wrong", text, ranks=ranks, evidence=[last.ref])
    if case.terminal is None or case.jobset is None:
        if phase == "Succeeded":
            return _wrong("the TorchrunJob is Succeeded, but its JobSet has not ended", [last.ref])
        return passed(CHECK, f"the job had not ended, and the TorchrunJob {_is(phase)}", [last.ref])
    refs = [last.ref, case.jobset.ref]
    if phase not in ENDS[case.terminal]:
        text = f"the JobSet is {case.terminal}, but the TorchrunJob {_is(phase)}"
        if completed:
            return _wrong(text, refs)
        return unknown(CHECK, f"{text}; its phase had only {TOLERANCE:g} s to change", evidence=refs)
    return _in_order(case, completed or last, phase, refs)


def _in_order(case: Case, end_state: ObjectState, phase: str, refs: list[str]) -> Finding:
    """Return a passed finding if the TorchrunJob did not end before its JobSet, otherwise a failed one."""
    kinds = ("Completed", "Failed")
    over = next(
        (s for s in case.jobsets if any(condition(s, kind).get("status") == "True" for kind in kinds)), None
    )
    if over is None:
        return passed(CHECK, f"the TorchrunJob is {phase}", refs)
    delay = (seconds(end_state.received_at) or 0.0) - (seconds(over.received_at) or 0.0)
    if delay < -TOLERANCE:
        return _wrong(
            f"the TorchrunJob was {phase} {-delay:.1f} s before its JobSet ended", [end_state.ref, over.ref]
        )
    return passed(CHECK, f"the TorchrunJob was {phase} {max(delay, 0.0):.1f} s after its JobSet ended", refs)
