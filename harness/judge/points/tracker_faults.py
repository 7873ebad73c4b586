"""Judge whether data is missing because the tracker had a full disk, lost its database or rejected a key."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.causes import CauseId
from harness.core.clock import seconds
from harness.evidence.kubernetes.objects import ObjectState, items, mapping
from harness.judge.case import Case, condition, names
from harness.judge.finding import Finding, counted, not_passed, passed
from harness.judge.points import lost_points
from harness.judge.points.ground_truth import Truth

KIND = "tracker"
_LACKS = {
    *("unification.no_run", "unification.not_attached", "unification.lost_points"),
    *("unification.wrong_status", "unification.split_runs"),
}
"""Causes that can result if the tracker does not store data or loses it."""
_FULL = "disk is full"


@dataclass(frozen=True)
class Absence:
    """A period in which no tracker pod was ready. `until` is "" if the period has not ended."""

    since: str
    until: str
    state: ObjectState

    @property
    def text(self) -> str:
        lasted = f"from {self.since} to {self.until}" if self.until else f"from {self.since} on"
        return f"the tracker had no ready pod {lasted}"


def absences(case: Case) -> list[Absence]:
    """Return the periods since the launch in which, according to the evidence, no tracker pod was ready."""
    launched = seconds(case.manifest.launched_at) or 0.0
    ready: dict[str, bool] = {}
    periods: list[Absence] = []
    for state in case.bundle.history(KIND):
        was_ready = any(ready.values()) or not ready
        ready[state.uid] = state.type != "DELETED" and condition(state, "Ready").get("status") == "True"
        now = any(ready.values())
        after_launch = (seconds(state.received_at) or 0.0) >= launched
        if was_ready and not now and after_launch:
            periods.append(Absence(_clock(state), "", state))
        elif now and periods and not periods[-1].until:
            periods[-1] = Absence(periods[-1].since, _clock(state), periods[-1].state)
    return periods


def absence_texts(case: Case) -> list[str]:
    """Return a sentence for each of the first three periods without a ready tracker pod."""
    return [absence.text for absence in absences(case)[:3]]


def replaced(case: Case) -> ObjectState | None:
    """Return the first state of a tracker pod that replaced another pod after the launch, or None.

    The database is in the pod's emptyDir volume, so the new pod started with an empty database.
    """
    launched = seconds(case.manifest.launched_at)
    first_states: dict[str, ObjectState] = {}
    for state in case.bundle.history(KIND):
        first_states.setdefault(state.uid, state)
    replacements = [
        state
        for state in first_states.values()
        if (seconds(mapping(state.object, "metadata").get("creationTimestamp")) or 0.0) >= (launched or 0.0)
        and any("emptyDir" in volume for volume in items(state.object, "spec", "volumes"))
    ]
    return replacements[0] if replacements and len(replacements) < len(first_states) else None


def tracker_kept(case: Case, truths: list[Truth], before: list[Finding]) -> Finding:
    """Run the `tracker-kept` check: the tracker is not the cause of the missing data reported in `before`."""
    data_losses = [f for f in before if f.result == "FAIL" and f.cause in _LACKS]
    launched, summary = seconds(case.manifest.launched_at) or 0.0, case.bundle.summary
    failures = [f for f in summary.failures if (seconds(f.last) or 0.0) >= launched] if summary else []
    full = [failure for failure in failures if _FULL in failure.reason]
    replacement, rejected_ranks = replaced(case), lost_points.rejected(truths)
    outages = absence_texts(case)
    cause: CauseId
    if not data_losses or not (full or replacement or rejected_ranks):
        text = "no data was found missing on the tracker"
        text = "nothing shows that the tracker lost the missing data" if data_losses else text
        failed = [f"{counted(f.count, 'request')} failed ({f.reason})" for f in failures[:2]]
        return passed("tracker-kept", text, why=[*failed, *outages])
    ranks = {rank for finding in data_losses for rank in finding.ranks} or set(case.ranks)
    reasons, refs = [data_losses[0].check.explanation], [*data_losses[0].evidence]
    if full:
        count, since = sum(f.count for f in full), min(f.first for f in full)
        text = f"the tracker's disk is full: {counted(count, 'request')} failed from {since} on"
        text += f" ({full[0].reason})"
        cause, refs = "tracker.disk_full", ["tracker/summary.json", *refs]
    elif replacement is not None:
        text = f"tracker pod {replacement.name} replaced another pod at {_clock(replacement)}, "
        text += "with an empty database"
        cause, reasons, refs = "tracker.data_lost", [*outages, *reasons], [replacement.ref, *refs]
    else:
        errors = [c.error for t in truths if t.rank in rejected_ranks for c in t.clients if c.error]
        text = f"the tracker rejected the key of {names(rejected_ranks)}: {errors[0]}"
        cause, ranks = "tracker.key_rejected", set(rejected_ranks)
    return not_passed("tracker-kept", cause, text, why=reasons, ranks=ranks, evidence=refs)


def _clock(state: ObjectState) -> str:
    return state.received_at.partition(".")[0] + "Z" * ("." in state.received_at)
