"""Judge whether somebody or something from outside the job disturbed it, and name that as the cause.

A disturbance is the cause when it came before what the other checks found, and explains it. Which findings
each one explains is written down (harness/judge/disturbance.py), so that a rank that failed by itself keeps
its own cause.
"""

from __future__ import annotations

from harness.evidence.schema import Check
from harness.judge.case import RUNNING, Case, Finding, found, passed
from harness.judge.change import Change
from harness.judge.changes import changes
from harness.judge.disturbance import UNEXPLAINED, named

CHECK = "disturbances"
TOLD = 8
"""How many changes a verdict lists."""


def judged(case: Case, findings: list[Finding]) -> list[Finding]:
    """Check `disturbances`: whether one explains the finding that would give the verdict.

    That one then becomes a consequence.
    """
    seen = changes(case)
    open_ = [finding for finding in findings if finding.check.result != "PASS"]
    if not open_:
        return [passed(CHECK, _beside(seen))]
    first = min(open_, key=lambda f: (f.check.result != "FAIL", f.check.cause is None, f.phase, f.at))
    cause, evidence = first.check.cause or "", [change.ref for change in seen[:TOLD]]
    for one in sorted(named(case, seen), key=lambda d: d.change.at):
        if one.explains(cause) and one.change.at <= first.at + one.late:
            text = f"{one.change.told}{one.text}. What followed: {first.check.explanation}"
            text += _more([change for change in seen if change is not one.change])
            refs = [one.change.ref, *first.check.evidence]
            result = found(CHECK, one.cause, text, ranks=one.ranks, evidence=refs)
            return [_before(result, first)]
    if cause in UNEXPLAINED and seen:
        text = f"No check explains it, and the cluster was changed meanwhile: {_listed(seen)}. "
        text += f"What was found: {first.check.explanation}"
        check = Check(
            name=CHECK,
            result=first.check.result,
            cause="run.disturbed",
            ranks=first.check.ranks,
            explanation=text,
            evidence=[*evidence, *first.check.evidence],
        )
        return [_before(Finding(check), first)]
    return [passed(CHECK, _beside(seen), evidence)]


def _before(result: Finding, first: Finding) -> Finding:
    """Return the finding as one that comes before the one that it explains."""
    return Finding(result.check, min(first.phase, RUNNING), 0.0)


def _beside(seen: list[Change]) -> str:
    return f"beside the job: {_listed(seen)}" if seen else "nobody else was seen to change the cluster"


def _listed(seen: list[Change]) -> str:
    more = f"; and {len(seen) - TOLD} more" if len(seen) > TOLD else ""
    return "; ".join(change.told for change in seen[:TOLD]) + more


def _more(rest: list[Change]) -> str:
    return f". Also changed: {_listed(rest)}" if rest else ""
