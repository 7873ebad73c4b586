"""Write the verdict and the reports of a finished run, and remove older bundles."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from harness.context import RecordedContext, RunContext
from harness.core.clock import now
from harness.core.errors import HarnessError
from harness.evidence.io.reader import Bundle
from harness.evidence.io.redaction import Redactor
from harness.evidence.io.runs_folder import Keep, prune
from harness.evidence.schema.bundle import Check, Verdict

_R = TypeVar("_R", Check, Verdict)


@dataclass(frozen=True)
class Outcome:
    verdict: Verdict
    bundle: Path
    report: Path | None
    """The path of the report, or None if it could not be written."""


def prepare_to_finish() -> None:
    """Import the modules of the judge and the reports.

    The import takes 0.2 s, so callers import them in advance, while the job is starting.
    """
    for module in ("harness.judge.users", "harness.report.report_files"):
        import_module(module)


def finish(context: RecordedContext) -> Outcome:
    """Judge the bundle, and write the verdict and report files to it."""
    from harness.judge.users import judge
    from harness.report.html.page import REPORT

    writer = context.writer
    writer.update(ended_at=now())
    writer.close()
    bundle = Bundle.open(writer.path)
    verdict = _redacted(judge(bundle), writer.redactor)
    writer.verdict(verdict)
    missing = _write_report_files(context, bundle, verdict)
    writer.release()
    return Outcome(verdict, writer.path, None if REPORT in missing else writer.path / REPORT)


def _redacted(verdict: Verdict, redactor: Redactor) -> Verdict:
    """Return the verdict with its texts redacted.

    The evidence is already redacted, but a user's judge can quote text from elsewhere. The words PASS, FAIL
    and UNKNOWN are not redacted, even if one of them is a password.
    """

    def clean(record: _R, *fields: str) -> _R:
        return record.model_copy(update={name: redactor.value(getattr(record, name)) for name in fields})

    checks = [clean(check, "explanation", "evidence") for check in verdict.checks]
    cleaned = clean(verdict, "explanation", "evidence", "next", "consequences")
    return cleaned.model_copy(update={"checks": checks})


def _write_report_files(context: RecordedContext, bundle: Bundle, verdict: Verdict) -> Collection[str]:
    """Write the report files. Return the names of those that could not be written.

    If a file cannot be written, the verdict does not change, because a report is not evidence. If the
    evidence filled the disk, no report files are written, so that the remaining space stays free.
    """
    from harness.report import report_files

    writer, disk_error = context.writer, context.writer.full
    failed = (
        report_files.write(bundle, verdict)
        if disk_error is None
        else dict.fromkeys(report_files.FILES, disk_error)
    )
    if failed:
        reasons = {str(error).partition("\n")[0] or type(error).__name__: None for error in failed.values()}
        message = writer.redactor.text("; ".join(reasons))
        advice = (
            f"to try again, run `harness report {writer.path}`, or add `--output FILE` to write the "
            "page to another path"
        )
        context.progress(f"could not write {', '.join(failed)} ({message}): {advice}")
    return failed.keys()


def tidy(context: RunContext, *spare: Path) -> None:
    """Remove the bundles that exceed the `keep_runs` setting, except those in `spare`.

    A failure is only printed as a progress message and does not change the verdict.
    """
    settings, progress = context.settings, context.progress
    try:
        removed = prune(settings.runs_dir, Keep.parse(settings.keep_runs), spare)
    except (HarnessError, OSError, KeyboardInterrupt) as error:
        progress(f"some older bundles could not be removed: {str(error) or 'SIGINT'}")
    else:
        for each in removed:
            progress(
                f"removed {each.bundle} ({each.bytes / 2**20:.1f} MiB), because keep_runs is "
                f"{settings.keep_runs}"
            )
