"""Judge whether a change that another client made in the cluster disturbed the job.

The first finding of the other checks decides the verdict. A disturbance becomes the cause if it happened
before that finding and explains it. The rules in harness/judge/disturbance/rules.py define which causes each
disturbance explains. A failure that no rule explains keeps its own cause.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from harness.core.checks import CheckId
from harness.judge.case import Case
from harness.judge.catalogue import RUNNING
from harness.judge.change import Change
from harness.judge.disturbance.changes import changes
from harness.judge.disturbance.rules import UNEXPLAINED, named
from harness.judge.finding import Finding, decisive, in_phases, listed, not_passed, passed, unknown
from harness.judge.points import elastic

CHECK: Final[CheckId] = "disturbances"
PARTS = {
    "the job": ("jobset", "job", "statefulset", "daemonset", "torchrunjob"),
    "its pods": ("pod",),
    "its namespace": ("namespace",),
    "Secrets and ConfigMaps": ("secret", "configmap"),
    "Services and NetworkPolicies": ("service", "networkpolicy"),
    "quotas and limits": ("resourcequota", "limitrange"),
    "queues": ("localqueue", "clusterqueue"),
    "nodes": ("node",),
    "DNS": ("dns", "dns-pod", "dns-service"),
    "the control plane": ("control-plane",),
    "DaemonSets of the system": ("system-daemonset", "service-proxy"),
    "JobSet and Kueue": ("jobset-controller", "kueue-controller", "jobset-pod", "kueue-pod"),
    "rules of admission": ("admission-policy", "validating-webhooks"),
    "the tracker": ("tracker", "tracker-service", "tracker-deployment"),
}
"""The parts of the cluster on which a launch depends, and the object kinds that belong to each part."""
_TRACKER = PARTS["the tracker"]
MAX_LISTED_CHANGES = 8
"""Maximum number of changes that are listed as evidence."""


def judged(case: Case, findings: list[Finding]) -> Finding:
    """Run the `disturbances` check: no change by another client explains the deciding finding.

    The deciding finding is the one that would determine the verdict. If a change explains it, the change
    becomes the cause, and the finding is listed as its consequence.
    """
    changed = changes(case)
    first = next(iter((in_phases if case.launch.attached else decisive)(findings)), None)
    if first is None:
        return passed(CHECK, _changes_text(case, changed))
    cause, evidence = first.cause or "", [change.ref for change in changed[:MAX_LISTED_CHANGES]]
    for one in sorted(named(case, changed), key=lambda d: d.change.at):
        if one.explains(cause) and one.change.at <= first.at + one.late:
            reasons = [f"consequence: {first.check.explanation}"]
            if other_changes := _listed([change for change in changed if change is not one.change]):
                reasons.append(f"also changed: {other_changes}")
            refs = [one.change.ref, *first.evidence]
            text = f"{one.change.line}{one.text}"
            return _before(
                not_passed(CHECK, one.cause, text, why=reasons, ranks=one.ranks, evidence=refs), first
            )
    # The `tracker.*` causes need no further explanation, so for them, changes to the tracker are only
    # mentioned.
    elsewhere = [
        change
        for change in changed
        if not (cause.startswith("tracker.") and change.kind in _TRACKER) and not elastic.allows(case, change)
    ]
    if cause in UNEXPLAINED and elsewhere:
        result = Finding(
            CHECK,
            first.result,
            "no check explains the finding, but the cluster was changed in the meantime",
            "run.disturbed",
            first.ranks,
            [*evidence, *first.evidence],
            details=[change.line for change in changed],
            why=[f"finding: {first.check.explanation}"],
        )
        return _before(result, first)
    if case.launch.attached:
        attached_at = case.manifest.attached_at or "the harness attached"
        return unknown(
            CHECK,
            f"changes by other clients before {attached_at} are unknown; since then: "
            f"{_changes_text(case, changed)}",
        )
    return passed(CHECK, _changes_text(case, changed), evidence)


def _before(result: Finding, first: Finding) -> Finding:
    """Return `result` with a phase and time that sort it before `first`, the finding that it explains."""
    return replace(result, phase=min(first.phase, RUNNING), at=0.0)


def _changes_text(case: Case, changed: list[Change]) -> str:
    """Return a sentence that lists the changes by other clients.

    If there were none, the sentence lists the parts of the cluster that were watched.
    """
    if changed:
        return f"changes outside the job: {_listed(changed)}"
    watched = case.manifest.watched
    if not watched:  # Older versions of the harness did not record the watched kinds.
        return "no changes to the cluster by other clients were recorded"
    watched_parts = [part for part, kinds in PARTS.items() if set(kinds) & set(watched)]
    unwatched = [part for part in PARTS if part not in watched_parts]
    text = f"no changes by other clients were recorded for {', '.join(watched_parts)}"
    return text + (f"; not watched: {', '.join(unwatched)}" if unwatched else "")


def _listed(changed: list[Change]) -> str:
    return listed([change.line for change in changed])
