"""Turn a bundle into one verdict with one primary cause. Pure: it reads the bundle and changes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable

from harness.evidence.reader import Bundle
from harness.evidence.schema import Check, Launch, Manifest, Verdict
from harness.judge import completion, disturbances, launching, restarts, unification, user_checks
from harness.judge.admission import ever_admitted
from harness.judge.case import END, Case, Finding, found, passed, unknown
from harness.judge.causes import CAUSES
from harness.judge.ends import End, ends


def judge(bundle: Bundle, judges: Iterable[user_checks.Named] = ()) -> Verdict:
    """Judge a bundle: PASS only if every check passed, those of the user's `judges` too. Never raises.

    The user's checks decide only where all of the harness's checks passed. Elsewhere they are listed beside
    the verdict and do not change it.
    """
    findings = _findings(bundle)
    theirs = user_checks.findings(bundle.path, judges) if _had_a_job(findings) else []
    ordered = [*_decisive(findings), *_decisive(theirs)]
    checks = [finding.check for finding in [*findings, *theirs]]
    if not ordered:
        return Verdict(verdict="PASS", explanation=_praise(checks), checks=checks)
    first = ordered[0].check
    rest = [
        f"{c.cause}: {c.explanation}" for f in ordered[1:] if (c := f.check).cause and c.cause != first.cause
    ]
    return Verdict(
        verdict="FAIL" if first.result == "FAIL" else "UNKNOWN",
        cause=first.cause or "run.evidence_missing",
        ranks=first.ranks,
        explanation=first.explanation,
        evidence=first.evidence,
        next=_guarded_next(bundle, first),
        consequences=rest,
        checks=checks,
    )


def _decisive(findings: list[Finding]) -> list[Finding]:
    """Return the findings that did not pass. The one that gives the verdict comes first."""
    return sorted(
        (f for f in findings if f.check.result != "PASS"),
        key=lambda f: (f.check.result != "FAIL", f.check.cause is None, f.phase, f.at),
    )


def _had_a_job(findings: list[Finding]) -> bool:
    return any(f.check.name == "launched" and f.check.result == "PASS" for f in findings)


def _guard(name: str, make: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Run one judge. A judge that raises becomes an UNKNOWN of its own, and the others go on."""
    try:
        return list(make())
    except Exception as error:
        text = f"The judge of {name} failed: {type(error).__name__}: {error}"
        return [found(name, "run.judge_error", text)]


def _findings(bundle: Bundle) -> list[Finding]:
    try:
        manifest = bundle.manifest
    except Exception as error:
        return [found("manifest", "run.judge_error", f"The manifest could not be read: {error}")]
    if manifest is None:
        return [
            found(
                "manifest",
                "run.no_manifest",
                "The bundle has no readable manifest.json",
                evidence=["manifest.json"],
            )
        ]
    findings = _guard("harness", lambda: [launching.ended(manifest), launching.stages(manifest)])
    if manifest.expected is None or manifest.launch is None:
        if all(f.check.result == "PASS" for f in findings):
            text = "The manifest does not say what was launched and expected"
            findings.append(found("manifest", "run.no_manifest", text, evidence=["manifest.json"]))
        else:
            findings.append(passed("manifest", "the run ended before it came to a launch"))
        return findings
    case = Case(bundle, manifest, manifest.expected, manifest.launch)
    return findings + _of_case(case)


def _of_case(case: Case) -> list[Finding]:
    findings = _guard("expected", lambda: _sane(case))
    findings += _guard("launched", lambda: [launching.launched(case)])
    if case.launch.uid is None:
        return findings + _disturbed(case, findings)
    each: dict[int, End] = {}

    def end_each() -> list[Finding]:
        each.update(ends(case))
        return []

    findings += _guard("rank-exit", end_each)
    findings += _guard("completion", lambda: completion.checks(case, each))
    findings += _guard("unification", lambda: unification.checks(case, each))
    findings += _guard("evidence", lambda: [launching.evidence(case)])
    if case.workload and not ever_admitted(case) and not case.pods:
        findings = [_not_reached(finding) for finding in findings]
    findings = [_too_early(finding) for finding in findings] if case.cut_short else findings
    return findings + _disturbed(case, findings)


def _disturbed(case: Case, findings: list[Finding]) -> list[Finding]:
    return _guard(disturbances.CHECK, lambda: disturbances.judged(case, findings))


def _not_reached(finding: Finding) -> Finding:
    """Shorten a check that could not be made because the job was not admitted."""
    check = finding.check
    if check.result != "UNKNOWN" or check.cause or check.name in {"queue", "admission"}:
        return finding
    text = "not reached: the job was not admitted"
    return unknown(check.name, text, ranks=check.ranks, evidence=check.evidence)


_NOT_YET = {
    *("controllers.jobset_not_reconciling", "controllers.kueue_not_reconciling", "rank.missing"),
    *("admission.pending", "admission.check_pending", "admission.not_seen"),
    *("unification.no_run", "unification.not_attached", "unification.lost_points"),
    *("unification.wrong_status",),
}
"""Causes that say that something has not come: of a job that was not let end, that proves nothing."""


def _too_early(finding: Finding) -> Finding:
    check = finding.check
    if check.cause not in _NOT_YET:
        return finding
    text = f"not judged, the harness stopped before the job ended ({check.explanation})"
    return unknown(check.name, text, ranks=check.ranks, evidence=check.evidence)


def _sane(case: Case) -> list[Finding]:
    expected = case.expected
    fits = expected.num_nodes > 0 and expected.ranks > 0 and expected.ranks % expected.num_nodes == 0
    text = f"{expected.ranks} ranks on {expected.num_nodes} nodes"
    if fits:
        return [passed("expected", f"{text}, shared id {expected.run_id}")]
    return [found("expected", "run.no_manifest", f"The manifest expects {text}", phase=END)]


def _praise(checks: list[Check]) -> str:
    said = {check.name: check.explanation for check in checks}
    parts = [
        said[name] for name in ("completed", "rank-exit", "run-exists", "no-lost-points") if name in said
    ]
    parts = [part.partition("; ")[0] for part in parts]  # what more there is to say is said by the check
    again = said.get(restarts.CHECK, restarts.ONCE)
    parts += [] if again == restarts.ONCE else [again]
    return "; ".join(parts) or "every check passed"


def _guarded_next(bundle: Bundle, check: Check) -> list[str]:
    try:
        return _next(bundle, check)
    except Exception:
        return [f"harness show {shlex.quote(str(bundle.path))}"]


def _next(bundle: Bundle, check: Check) -> list[str]:
    """Commands to go on with, the most telling first, then what to do about the cause."""
    path = shlex.quote(str(bundle.path))
    family = (check.cause or "").partition(".")[0]
    commands = [f"harness show {path}"]
    if family in {"rank", "rendezvous", "run", "unification", user_checks.FAMILY}:
        commands = [f"harness logs {path} --rank {rank}" for rank in check.ranks[:3]] + commands
    manifest = bundle.manifest
    if manifest and manifest.launch and manifest.launch.uid:
        commands += _kubectl(bundle, manifest, manifest.launch, family, check)
    if check.cause in CAUSES:
        commands.append(f"# {CAUSES[check.cause].action}")
    return commands


def _kubectl(bundle: Bundle, manifest: Manifest, launch: Launch, family: str, check: Check) -> list[str]:
    cluster = manifest.cluster
    context = cluster.get("context") or (f"kind-{cluster['name']}" if cluster.get("name") else None)
    file = f" --kubeconfig {shlex.quote(str(cluster['kubeconfig']))}" if cluster.get("kubeconfig") else ""
    kubectl = f"kubectl{file}" + (f" --context {context}" if context else "") + f" -n {launch.namespace}"
    if family in {"queue", "admission"}:
        return [f"{kubectl} describe workloads.kueue.x-k8s.io", f"{kubectl} get localqueue"]
    if family in {"image", "scheduling", "rendezvous", "rank"}:
        pods = bundle.ranks()
        wanted = {pods[rank].name: None for rank in check.ranks if rank in pods}
        return [f"{kubectl} describe pod {name}" for name in list(wanted)[:3]]
    if check.cause in {"run.not_completed", "run.timed_out", "rank.missing"} or family == "controllers":
        return [f"{kubectl} describe jobset {launch.object_name}"]
    return []
