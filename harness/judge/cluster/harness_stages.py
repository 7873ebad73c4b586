"""Judge whether the harness itself worked, based on its stages, the launch and the evidence."""

from __future__ import annotations

from dataclasses import replace

from harness.evidence.schema.bundle import Manifest
from harness.judge.case import SIGNALS, Case
from harness.judge.catalogue import CAUSES, END, PROVISION, START, TRACKER
from harness.judge.finding import Finding, counted, listed, not_passed, passed, unknown

_STAGE_PHASE = {"run": END + 0.5, "rank": END + 0.5, "rendezvous": END + 0.5, "tracker": TRACKER}
_STAGE_PHASE |= {"queue": START, "admission": START, "scheduling": START}


def stages(manifest: Manifest) -> Finding:
    """Run the `stages` check: every stage of the harness succeeded."""
    for stage in manifest.stages:
        error = (stage.error or "no reason was recorded").strip()
        # The `harness` check reports stages that a signal ended.
        if stage.ok or (manifest.interrupted and error in SIGNALS):
            continue
        cause = CAUSES.get(stage.cause or "")
        text = f"the stage {stage.name} failed after {stage.seconds:.0f} s: {error}"
        if cause is None:
            return not_passed("stages", "run.harness_error", text, evidence=["manifest.json"])
        phase = _STAGE_PHASE.get(cause.family, PROVISION)
        holders = [f"{use.what}, holds {use.bytes / 2**30:.1f} GiB" for use in manifest.disk]
        reasons = [f"largest users of that disk: {listed(holders)}"] if holders else []
        finding = not_passed("stages", cause.id, text, why=reasons, evidence=["manifest.json"], phase=phase)
        if manifest.launch is not None and manifest.launch.attached:
            return replace(finding, result="UNKNOWN", why=[*reasons, "the job may be fine"])
        return finding
    return passed("stages", f"{counted(len(manifest.stages), 'stage')} succeeded", ["manifest.json"])


def ended(manifest: Manifest) -> Finding:
    """Run the `harness` check: the harness was neither stopped by a signal nor killed."""
    refs = ["manifest.json"]
    word = (manifest.interrupted or "").upper()
    if word.startswith(("SIG", "KEYBOARDINTERRUPT", "CTRL")):
        text = f"the harness was stopped by {manifest.interrupted}{_ended_stages(manifest)}"
        return not_passed("harness", "run.interrupted", text, why=["the job may be fine"], evidence=refs)
    if manifest.ended_at is None:
        in_stage = f" in the stage {manifest.in_stage}" if manifest.in_stage else ""
        text = f"the harness was killed{in_stage}, so its evidence is incomplete"
        return not_passed("harness", "run.harness_killed", text, evidence=refs)
    # Requests that were retried are reported, but do not affect the verdict.
    retries = listed([f"{retry.what}: {retry.reason}" for retry in manifest.retries])
    reasons = [f"it repeated these requests: {retries}"] if retries else []
    attached = manifest.launch is not None and manifest.launch.attached
    text = (
        "the harness recorded the attached job"
        if attached
        else "the harness watched the launch until it ended"
    )
    return passed("harness", text, refs, why=reasons)


def _ended_stages(manifest: Manifest) -> str:
    """Return a clause that names all stages ended by a signal.

    There can be several, because stages run in parallel, and because a second signal can end a further stage.
    """
    stage_names = [stage.name for stage in manifest.stages if (stage.error or "") in SIGNALS]
    return f" in the stage{'s' if stage_names[1:] else ''} {' and '.join(stage_names)}" if stage_names else ""


def manifest(manifest: Manifest | None, before: list[Finding]) -> Finding:
    """Run the `manifest` check: the manifest is readable, and it records a launch.

    If an earlier check failed, the manifest need not record a launch. `before` contains the findings of the
    earlier checks.
    """
    refs = ["manifest.json"]
    if manifest is None:
        return not_passed(
            "manifest", "run.no_manifest", "the bundle has no readable manifest.json", evidence=refs
        )
    if manifest.expected is not None and manifest.launch is not None:
        return passed("manifest", "the manifest records the launch and what was expected", refs)
    if any(finding.result != "PASS" for finding in before):
        return passed("manifest", "the run ended before the launch", refs)
    text = "the manifest does not record what was launched and expected"
    return not_passed("manifest", "run.no_manifest", text, evidence=refs)


def expected(case: Case) -> Finding:
    """Run the `expected` check: the expected ranks can be distributed evenly over the expected nodes."""
    ranks, nodes = case.expected.ranks, case.expected.num_nodes
    text = f"{counted(ranks, 'rank')} on {counted(nodes, 'node')}"
    if case.launch.attached:
        source = case.expected.ranks_from
        if not case.expected.ranks_given:
            reason = "ranks are numbered by pod, as if each pod had one rank"
            return unknown("expected", f"the number of ranks is not known: {source}; {reason}")
        return passed("expected", f"{text}, from {source}")
    if nodes > 0 and ranks > 0 and ranks % nodes == 0:
        return passed("expected", f"run {case.expected.run_id} is expected to have {text}")
    rule = "every node must have the same number of ranks, at least one"
    return not_passed("expected", "run.no_manifest", f"the manifest expects {text}, but {rule}")


def launched(case: Case) -> Finding:
    """Run the `launched` check: the launch created an object, and the harness read it from the cluster."""
    launch = case.launch
    if launch.object_name and launch.uid:
        return passed("launched", f"{launch.kind} {launch.object_name} exists", ["manifest.json"])
    is_stopped = case.manifest.interrupted or case.manifest.ended_at is None
    if is_stopped or not all(stage.ok for stage in case.manifest.stages):
        return unknown("launched", "the launch did not start, did not finish or was not recorded")
    text = f"the launcher {launch.launcher} reported no error, but its {launch.kind} was not found"
    return not_passed("launched", "launch.jobset_not_found", text, evidence=["manifest.json"])


def evidence(case: Case) -> Finding:
    """Run the `evidence` check: none of the bundle files that were read is truncated or malformed.

    Earlier checks have read all files except those in objects/.
    """
    case.bundle.read_objects()
    damaged = case.bundle.damaged
    if damaged:
        refs = [line.split(" ")[0] for line in damaged[:10]]
        return not_passed(
            "evidence", "run.evidence_damaged", "the bundle is damaged", details=damaged, evidence=refs
        )
    return passed("evidence", "every record that was read is complete")
