"""Compute a verdict with one primary cause from a bundle, without changing the bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from harness.core.causes import CauseId
from harness.core.checks import CheckId
from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Check, Verdict
from harness.judge import next_commands, unification, user_checks
from harness.judge.acceptance import checks as acceptance
from harness.judge.before_attaching import downgrade
from harness.judge.case import Case, names
from harness.judge.catalogue import CAUSES, REGISTRY, Entry, Requirement
from harness.judge.cluster import (
    admission,
    controllers,
    harness_stages,
    netcheck,
    nodes,
    other_containers,
    pod_start,
)
from harness.judge.context import Facts
from harness.judge.disturbance import check as disturbances
from harness.judge.finding import Finding, counted, decisive, explanation, in_phases, not_passed, unknown
from harness.judge.points import (
    attached_digests,
    attached_recording,
    client_rewrites,
    foreign_writers,
    omitted_values,
    shared_run,
    tracker_faults,
)
from harness.judge.ranks import (
    code,
    completion,
    exit_codes,
    gpu_use,
    job_status,
    log_completeness,
    pods,
    restarts,
    unrecorded_processes,
    worlds,
)
from harness.judge.training import checkpoints, data_order, upload

Judge = Callable[[Facts], Finding | list[Finding]]


def _admission(facts: Facts) -> list[Finding]:
    return admission.queue_and_admission(facts.case)


def _rank_ends(facts: Facts) -> list[Finding]:
    recorded = attached_digests.world(facts.case, facts.admitted) if facts.admitted is not None else None
    return pods.rank_ends(facts.case, facts.ends, recorded)


def _or_digests(id_: CheckId, judge: Callable[[Facts], Finding]) -> Judge:
    """Return a check function that compares points or, if pods have injected recorders, digests."""
    return lambda facts: judge(facts) if facts.admitted is None else facts.of_digests[id_]


def _one_run(facts: Facts) -> Finding:
    if facts.admitted is None:
        return shared_run.one_run(facts.attached, facts.recorded, facts.truths, facts.compared)
    run_id = facts.attached.shared[0][1].run_id
    logged = attached_digests.elsewhere(facts.admitted, run_id)
    return shared_run.one_run_of_digests(facts.attached, logged)


def _rank_pods(case: Case) -> Finding:
    return pods.refused(case) or controllers.no_job(case) or pods.rank_pods(case)


CHECKS: dict[CheckId, Judge] = {
    "harness": lambda facts: harness_stages.ended(facts.manifest),
    "stages": lambda facts: harness_stages.stages(facts.manifest),
    "manifest": lambda facts: harness_stages.manifest(facts.bundle.manifest, facts.findings),
    "expected": lambda facts: harness_stages.expected(facts.case),
    "launched": lambda facts: harness_stages.launched(facts.case),
    "queue": _admission,
    "admission": _admission,
    "scheduling": lambda facts: pod_start.scheduling(facts.case),
    "image": lambda facts: pod_start.image(facts.case),
    "rank-pods": lambda facts: _rank_pods(facts.case),
    "containers": lambda facts: other_containers.check(facts.case, facts.ends),
    "netcheck": lambda facts: netcheck.check(facts.case),
    "nodes": lambda facts: nodes.checks(facts.case, facts.ends),
    "eviction": lambda facts: admission.eviction(facts.case),
    "rendezvous": _rank_ends,
    "rank-exit": _rank_ends,
    "world": lambda facts: worlds.check(facts.case, facts.findings),
    "exits": lambda facts: exit_codes.check(facts.case, facts.findings),
    "gpus": lambda facts: gpu_use.check(facts.case),
    "reports": lambda facts: acceptance.reports(facts.case),
    "acceptance": lambda facts: acceptance.accepted(facts.case),
    "completed": lambda facts: completion.completed(facts.case, facts.ends),
    "job-status": lambda facts: job_status.check(facts.case, facts.ends),
    "node-spread": lambda facts: pods.spread(facts.case),
    "logs": lambda facts: log_completeness.logs(facts.case),
    "recorded": lambda facts: attached_recording.recorded(facts.case, facts.admitted),
    "tracker": unification.tracker_evidence,
    "ground-truth-complete": _or_digests("ground-truth-complete", unification.truth_complete),
    "ranks-logged": _or_digests("ranks-logged", unification.ranks_logged),
    "recorders-agree": lambda facts: facts.agreement.finding(),
    "keys": lambda facts: omitted_values.check(facts.agreement, facts.failed("world")),
    "restarts": lambda facts: restarts.check(facts.case, facts.truths, facts.restarts),
    "code": lambda facts: code.check(facts.case, facts.truths, [other for _, other in facts.agreement.pairs]),
    "run-exists": lambda facts: shared_run.run_exists(facts.attached),
    "one-run": _one_run,
    "run-not-stale": lambda facts: shared_run.run_fresh(facts.attached),
    "only-our-job": lambda facts: foreign_writers.check(facts.attached),
    "attached": lambda facts: shared_run.every_rank(facts.attached, facts.truths, facts.compared),
    "processes": lambda facts: unrecorded_processes.check(facts.attached),
    "client-kept": _or_digests(
        "client-kept", lambda facts: client_rewrites.check(facts.rewritten, facts.label)
    ),
    "no-lost-points": _or_digests("no-lost-points", unification.no_lost_points),
    "values": _or_digests("values", unification.values),
    "collisions": _or_digests("collisions", unification.collisions),
    "no-unexpected-points": _or_digests("no-unexpected-points", unification.foreign),
    "status": lambda facts: shared_run.status(facts.attached, facts.ends),
    "training-checkpoints": checkpoints.checkpoints,
    "training-best": checkpoints.best,
    "training-curve": checkpoints.curve,
    "training-data": data_order.data,
    "training-resume": data_order.resume,
    "training-upload": upload.check,
    "tracker-kept": lambda facts: tracker_faults.tracker_kept(facts.case, facts.truths, facts.findings),
    "evidence": lambda facts: harness_stages.evidence(facts.case),
    "disturbances": lambda facts: disturbances.judged(facts.case, _soften_if_early(facts)),
}
"""The function for each check. A function that is listed for two checks returns both findings."""


PROVING = (
    *("netcheck", "reports", "acceptance", "completed", "rank-exit", "run-exists", "no-lost-points"),
    *("training-checkpoints", "training-best", "training-data", "training-upload"),
)
"""Checks whose explanations are included in the explanation of a PASS."""


UNREAD: tuple[CauseId, ...] = (
    *("run.evidence_missing", "run.log_incomplete"),
    *("unification.truth_incomplete", "unification.unrecorded_process"),
)
"""Causes that are only consequences if logs cannot be read, because the recorders write to the logs."""


def judge(bundle: Bundle, judges: Iterable[user_checks.Named] = ()) -> Verdict:
    """Return the verdict for a bundle. It is PASS only if every check passed, including those of `judges`.

    This function never raises. User checks affect the verdict only if all of the harness's own checks passed.
    Otherwise, they are listed without changing the verdict.
    """
    facts = Facts(bundle)
    for entry in filter(facts.applies, REGISTRY.values()):
        if (finding := _finding(facts, entry)) is not None:
            facts.findings.append(finding)
    own_findings = _soften_if_early(facts)
    user_findings = (
        user_checks.findings(bundle.path, judges) if facts.tracked and facts.passed("launched") else []
    )
    ordered = [
        *(in_phases(own_findings) if facts.attached_to_others else decisive(own_findings)),
        *decisive(user_findings),
    ]
    checks = [finding.check for finding in [*own_findings, *user_findings]]
    if not ordered:
        text = _explain_pass(facts, own_findings, accounted(facts))
        return Verdict(verdict="PASS", explanation=text, checks=checks)
    first = ordered[0].check
    named_causes = {first.cause, *(UNREAD if first.cause == "cluster.kubelet_unreachable" else ())}
    other_checks = [finding.check for finding in ordered[1:]]
    consequences = [
        f"{c.cause}: {c.explanation}" for c in other_checks if c.cause and c.cause not in named_causes
    ]
    return Verdict(
        verdict="FAIL" if first.result == "FAIL" else "UNKNOWN",
        cause=first.cause or "run.evidence_missing",
        ranks=first.ranks,
        explanation=_with(first, checks, bundle),
        evidence=first.evidence,
        next=next_commands.commands(bundle, first),
        consequences=consequences,
        checks=checks,
    )


def _with(first: Check, checks: list[Check], bundle: Bundle) -> str:
    """Return the reason why a verdict is not PASS, with replaced packages and other changes to the cluster.

    The reader should know about these packages and changes, even if no check connects them to the cause.
    """
    disturbance_checks = [
        c for c in checks if c.name == disturbances.CHECK and c.result == "PASS" and c.evidence
    ]
    return explanation(
        first.explanation, why=[*_replaced(bundle), *(check.explanation for check in disturbance_checks)]
    )


def _replaced(bundle: Bundle) -> list[str]:
    """Return a sentence for each package that the user replaced."""
    return [
        f"the package {each.name} was replaced: {each.version} from {each.origin}, but "
        f"the lock file has {each.locked or 'no version'}"
        for each in (bundle.manifest.replaced if bundle.manifest else ())
    ]


def _finding(facts: Facts, entry: Entry) -> Finding | None:
    """Return a check's finding, or None to omit the check.

    If the check raises an exception, its result is UNKNOWN.
    """
    try:
        if (unmet := facts.lacks(entry.needs)) is not None:
            return _unmet(entry.id, *unmet)
        finding = _run_check(facts, entry.id)
        if (unread := _unread(facts, entry)) and (finding.result != "UNKNOWN" or finding.cause is None):
            return unknown(entry.id, f"not judged: {unread}")
        if finding.result == "PASS" and entry.passes_with and (unmet := facts.lacks(entry.passes_with)):
            return _unmet(entry.id, *unmet)
        return finding
    except Exception as error:
        text = f"the check {entry.id} failed with {type(error).__name__}: {error}"
        return not_passed(entry.id, "run.judge_error", text)


def _unread(facts: Facts, entry: Entry) -> str:
    """Return a clause about objects that the check needs and that could not be read, or ""."""
    unread = facts.bundle.manifest.unread if facts.bundle.manifest else {}
    return "; ".join(
        f"{kind} objects could not be read ({unread[kind]})" for kind in entry.objects if kind in unread
    )


def _run_check(facts: Facts, id_: CheckId) -> Finding:
    """Return the check's finding.

    Raises ValueError if the check's function returns findings for wrong checks.
    """
    judge = CHECKS[id_]
    if judge not in facts.results:
        result = judge(facts)
        facts.results[judge] = result if isinstance(result, list) else [result]
    findings = facts.results[judge]
    expected = {other for other, function in CHECKS.items() if function is judge}
    if sorted(finding.name for finding in findings) != sorted(expected):
        raise ValueError(f"expected {sorted(expected)}, got {[finding.name for finding in findings]}")
    # Accessing `check` renders the text, so that the caller also catches errors in rendering.
    return next(finding for finding in findings if finding.check.name == id_)


def _unmet(id_: CheckId, need: Requirement, ranks: list[int]) -> Finding | None:
    """Return the finding for a check whose need is unmet, or None if the verdict should omit the check."""
    return unknown(id_, need.missing.format(ranks=names(ranks)), ranks=ranks) if need.missing else None


def _soften_if_early(facts: Facts) -> list[Finding]:
    """Return the findings.

    Those that may only be due to the early end of the harness are changed to UNKNOWN.
    """
    return [_unless_too_early(facts, finding) for finding in facts.findings]


def _unless_too_early(facts: Facts, finding: Finding) -> Finding:
    """Return the finding, changed to UNKNOWN if it reports an absence and the harness stopped too early.

    For an attached job, the finding is changed to UNKNOWN if its reason may have occurred before the harness
    attached.
    """
    if facts.attached_to_others:
        return downgrade(facts.case, finding)
    absent = finding.cause is not None and CAUSES[finding.cause].absence
    # A stage fails only after it has waited long enough for the absent object or event.
    if not absent or finding.name == "stages" or not facts.case.cut_short:
        return finding
    text = f"not judged: the harness stopped before the job ended ({finding.check.explanation})"
    return replace(finding, result="UNKNOWN", cause=None, head=text, details=(), why=())


def _explain_pass(facts: Facts, findings: list[Finding], accounted: str) -> str:
    """Return the explanation of a PASS: the main proofs, all restarts, and the summary in `accounted`."""
    texts = {finding.name: explanation(finding.head, finding.details) for finding in findings}
    is_partial = "ranks-logged" in texts and (
        len(facts.case.logging) < len(facts.case.ranks) or facts.admitted is not None
    )
    notes = [one.name for one in findings if one.name in ("restarts", "collisions", "keys") and one.details]
    proving = [*PROVING, *["ranks-logged"] * is_partial, *notes]
    untracked = (
        [] if "run-exists" in texts else ["this launch does not log with Pluto, so no points were judged"]
    )
    proofs = [texts[name] for name in proving if name in texts]
    return explanation("", why=[*proofs, *untracked, *_replaced(facts.bundle), accounted])


def accounted(facts: Facts) -> str:
    """Return a summary such as "2 processes, 120 keys × steps, 2 exit codes: all accounted for".

    Returns "" if the launch's processes were not recorded.
    """
    passed_checks = {finding.name for finding in facts.findings if finding.result == "PASS"}
    if "exits" not in passed_checks:
        return ""
    lives = sum(map(len, facts.case.lives.values()))
    parts = [counted(lives, "process", "processes")]
    if "keys" in passed_checks:
        parts.append(f"{facts.compared.compared} keys × steps")
    parts.append(counted(lives, "exit code"))
    text = ", ".join(parts) + ": all accounted for"
    summary = facts.bundle.summary
    if summary is not None and not summary.processes:
        text += ", but only according to the pods: this tracker does not record which process sent a point"
    return text
