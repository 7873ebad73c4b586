"""Judge whether a training run was completely uploaded to the S3 bucket given with --upload."""

from __future__ import annotations

from harness.evidence.schema.training import AUDIT, UPLOAD, TrainingAudit, TrainingTransfer
from harness.judge.context import Facts
from harness.judge.finding import Finding, counted, not_passed, passed, unknown

STANDS = "the other checks of the training are still valid"


def check(facts: Facts) -> Finding:
    """Run the `training-upload` check: every complete checkpoint in the audit could be read from the bucket.

    A failed upload fails only this check, not the other training checks.
    """
    url, audit, transfer = facts.case.launch.upload, facts.bundle.training_audit, facts.bundle.training_upload
    if transfer is None:
        return unknown("training-upload", f"the bundle has no record of an upload to {url}")
    if transfer.error is not None:
        text = f"the run was not uploaded to {url}: {transfer.error}"
        return not_passed("training-upload", "training.upload_failed", text, why=[STANDS], evidence=[UPLOAD])
    if audit is None or audit.error is not None:
        return unknown("training-upload", "the expected content is not known: no checkpoint was audited")
    if differences := _lacking(audit, transfer, str(url)):
        text = f"the upload to {url} differs from the run"
        refs = [UPLOAD, AUDIT]
        return not_passed(
            "training-upload",
            "training.upload_failed",
            text,
            details=differences,
            why=[STANDS],
            evidence=refs,
        )
    size, new = (sum(getattr(one, name) for one in transfer.checkpoints) for name in ("bytes", "sent"))
    names = ", ".join(one.name for one in transfer.checkpoints)
    text = (
        f"{counted(len(transfer.checkpoints), 'checkpoint')} at {url}, read back and equal to the manifests: "
        f"{names} ({size} bytes, {new} of them sent now), `best` is {transfer.best}"
    )
    return passed("training-upload", text, [UPLOAD])


def _lacking(audit: TrainingAudit, transfer: TrainingTransfer, url: str) -> list[str]:
    """Return the differences between the uploaded run and the run on disk."""
    uploaded = {one.name: one.step for one in transfer.checkpoints}
    differences = [
        f"{one.name} was not sent"
        for one in audit.checkpoints
        if one.whole and uploaded.get(one.name) != one.step
    ]
    differences += [f"{text}, and was not sent" for text in transfer.torn]
    if (transfer.url, transfer.run) != (url, audit.run):
        differences.append(
            f"run {transfer.run!r} was sent to {transfer.url}, instead of run {audit.run!r} to {url}"
        )
    best = audit.best.target if audit.best else None
    if best != transfer.best:
        differences.append(f"`best` is {best} on the volume, but {transfer.best} was sent")
    return differences
