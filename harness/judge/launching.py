"""Judge whether the harness did its part: its stages, the launch, and the evidence itself."""

from __future__ import annotations

from harness.evidence.schema import Manifest
from harness.judge.case import END, PROVISION, START, TRACKER, Case, Finding, found, passed, unknown
from harness.judge.causes import CAUSES

_STAGE_PHASE = {"run": END + 0.5, "rank": END + 0.5, "rendezvous": END + 0.5, "tracker": TRACKER}
_SIGNALS = {"KeyboardInterrupt", "SIGINT", "SIGTERM", "SIGHUP"}


def stages(manifest: Manifest) -> Finding:
    """Check every stage that the harness itself had to complete."""
    for stage in manifest.stages:
        if stage.ok:
            continue
        error = (stage.error or "no reason recorded").strip()
        if manifest.interrupted and error in _SIGNALS:
            continue
        cause = CAUSES.get(stage.cause or "")
        text = f"The stage {stage.name} failed after {stage.seconds:.0f} s: {error}{_holders(manifest)}"
        if cause is None:
            return found("stages", "run.harness_error", text, evidence=["manifest.json"], phase=END)
        phase = _STAGE_PHASE.get(cause.family, PROVISION)
        if cause.family in {"queue", "admission", "scheduling"}:
            phase = START
        return found("stages", cause.id, text, evidence=["manifest.json"], phase=phase)
    return passed("stages", f"{len(manifest.stages)} stages done", ["manifest.json"])


def _holders(manifest: Manifest) -> str:
    """Return who held most of a full disk, as the end of an explanation."""
    held = [f"{use.what}: {use.bytes / 2**30:.1f} GiB" for use in manifest.disk[:3]]
    return f". The most of that disk is held by {'; '.join(held)}" if held else ""


def ended(manifest: Manifest) -> Finding:
    """Check whether the harness watched until the end."""
    word = (manifest.interrupted or "").upper()
    if word.startswith(("SIG", "KEYBOARDINTERRUPT", "CTRL")):
        return found(
            "harness",
            "run.interrupted",
            f"The harness was stopped by {manifest.interrupted}{_where(manifest)}; the job may be fine",
            evidence=["manifest.json"],
        )
    if manifest.ended_at is None:
        where = f" in the stage {manifest.in_stage}" if manifest.in_stage else ""
        return found(
            "harness",
            "run.harness_killed",
            f"The harness was cut off{where}: its evidence has no end",
            evidence=["manifest.json"],
        )
    return passed("harness", f"the harness watched until the end{_retries(manifest)}", ["manifest.json"])


def _retries(manifest: Manifest) -> str:
    """Return what infrastructure lost and the harness requested again.

    It changes no verdict, but it is shown.
    """
    told = [f"{retry.what}: {retry.reason}" for retry in manifest.retries]
    more = f"; and {len(told) - 3} more" if len(told) > 3 else ""
    return f", with retries: {'; '.join(told[:3])}{more}" if told else ""


def _where(manifest: Manifest) -> str:
    """Return every stage that a signal ended.

    Some run side by side, and a second signal ends a second one.
    """
    ended_ = [stage.name for stage in manifest.stages if (stage.error or "") in _SIGNALS]
    return f" in the stage{'s' if ended_[1:] else ''} {' and '.join(ended_)}" if ended_ else ""


def launched(case: Case) -> Finding:
    """Check that the launch made an object. Only an object read back from the cluster proves it."""
    launch = case.launch
    if launch.object_name and launch.uid:
        return passed("launched", f"{launch.kind} {launch.object_name} exists", ["manifest.json"])
    stopped = case.manifest.interrupted or case.manifest.ended_at is None
    if stopped or not all(stage.ok for stage in case.manifest.stages):
        return unknown("launched", "the launch was not reached, did not end or was not recorded")
    return found(
        "launched",
        "launch.jobset_not_found",
        f"{launch.launcher} reported no error, yet there is no {launch.kind} of it in {launch.namespace}",
        evidence=["manifest.json"],
        phase=PROVISION,
    )


def evidence(case: Case) -> Finding:
    """Check that nothing that was read is cut off or malformed.

    Call it last, when all other checks have read their part.
    """
    damaged = case.bundle.damaged
    if damaged:
        more = f" and {len(damaged) - 3} more" if len(damaged) > 3 else ""
        return found(
            "evidence",
            "run.evidence_damaged",
            f"The bundle is damaged: {'; '.join(damaged[:3])}{more}",
            evidence=[line.split(" ")[0] for line in damaged[:10]],
        )
    return passed("evidence", "every record read is whole")
