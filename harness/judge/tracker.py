"""Judge whether the tracker caused what the run lacks: by its disk, its database, its key or its absence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.core.causes import CauseId
from harness.evidence.objects import ObjectState, items, mapping
from harness.evidence.schema import TrackerSummary
from harness.judge import delivery
from harness.judge.case import TRACKER, Case, Finding, condition, found, names, passed, seconds
from harness.judge.truth import Truth

KIND = "tracker"
_LACKS = {
    *("unification.no_run", "unification.not_attached", "unification.lost_points"),
    *("unification.wrong_status", "unification.split_runs"),
}
"""Causes that a tracker produces when it stores nothing or forgets what it stored."""
_FULL = "disk is full"


@dataclass(frozen=True)
class Absence:
    """A time in which no pod of the tracker was ready. `until` is "" when it has not ended."""

    since: str
    until: str
    seen: ObjectState

    @property
    def text(self) -> str:
        lasted = f"from {self.since} to {self.until}" if self.until else f"from {self.since} on"
        return f"the tracker had no ready pod {lasted}"


def absences(case: Case) -> list[Absence]:
    """Return the tracker's absences from the launch to the end of the wait, as its watched pods show them."""
    launched = seconds(case.manifest.launched_at) or 0.0
    ready: dict[str, bool] = {}
    found_: list[Absence] = []
    for seen in case.bundle.history(KIND):
        before = any(ready.values()) or not ready
        ready[seen.uid] = seen.type != "DELETED" and condition(seen, "Ready").get("status") == "True"
        now = any(ready.values())
        late = (seconds(seen.received_at) or 0.0) >= launched
        if before and not now and late:
            found_.append(Absence(_clock(seen), "", seen))
        elif now and found_ and not found_[-1].until:
            found_[-1] = Absence(found_[-1].since, _clock(seen), found_[-1].seen)
    return found_


def told_absence(case: Case) -> str:
    """Return the end of a sentence that says when the tracker was away, or ""."""
    told = absences(case)
    return "; " + "; ".join(absence.text for absence in told[:3]) if told else ""


def replaced(case: Case) -> ObjectState | None:
    """Return the first state of a tracker pod that replaced another one after the launch, or None.

    The database is in a volume of the pod, so the new pod began with an empty one.
    """
    launched = seconds(case.manifest.launched_at)
    first: dict[str, ObjectState] = {}
    for seen in case.bundle.history(KIND):
        first.setdefault(seen.uid, seen)
    later = [
        seen
        for seen in first.values()
        if (seconds(mapping(seen.object, "metadata").get("creationTimestamp")) or 0.0) >= (launched or 0.0)
        and any("emptyDir" in volume for volume in items(seen.object, "spec", "volumes"))
    ]
    return later[0] if later and len(later) < len(first) else None


def kept(case: Case, summary: TrackerSummary | None, truths: list[Truth], rest: Iterable[Finding]) -> Finding:
    """Check `tracker-kept`: whether the tracker caused what `rest` finds missing."""
    lacking = [f.check for f in rest if f.check.result == "FAIL" and f.check.cause in _LACKS]
    launched = seconds(case.manifest.launched_at) or 0.0
    failures = [f for f in summary.failures if (seconds(f.last) or 0.0) >= launched] if summary else []
    if not lacking:
        noted = "".join(f"; it failed {f.count} requests ({f.reason})" for f in failures[:2])
        return passed("tracker-kept", f"nothing is missing that it should have{noted}{told_absence(case)}")
    ranks = {rank for check in lacking for rank in check.ranks} or set(range(case.expected.ranks))
    after = f". {lacking[0].explanation}"
    refs = [ref for check in lacking[:1] for ref in check.evidence]
    full = [failure for failure in failures if _FULL in failure.reason]
    anew, refused = replaced(case), delivery.rejected(truths)
    if full:
        count, since = sum(f.count for f in full), min(f.first for f in full)
        text = f"The tracker's disk is full: it failed {count} requests from {since} on ({full[0].reason})"
        return _found("tracker.disk_full", text + after, ranks, ["tracker/summary.json", *refs])
    if anew is not None:
        text = f"Pod {anew.name} of the tracker took the place of another at {_clock(anew)}, with no database"
        return _found("tracker.data_lost", f"{text}{told_absence(case)}{after}", ranks, [anew.ref, *refs])
    if refused:
        errors = [c.error for t in truths if t.rank in refused for c in t.clients if c.error]
        text = f"The tracker refused the key of {names(refused)}: {errors[0]}{after}"
        return _found("tracker.key_rejected", text, refused, refs)
    failed = "".join(f"; it failed {f.count} requests ({f.reason})" for f in failures[:2])
    return passed("tracker-kept", f"nothing shows that the tracker lost it{failed}{told_absence(case)}")


def _found(cause: CauseId, text: str, ranks: Iterable[int], evidence: list[str]) -> Finding:
    return found("tracker-kept", cause, text, ranks=ranks, evidence=evidence, phase=TRACKER)


def _clock(seen: ObjectState) -> str:
    return seen.received_at.partition(".")[0] + "Z" * ("." in seen.received_at)
