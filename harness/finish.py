"""The end of every run: its verdict, its report, and which older bundles stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.errors import HarnessError
from harness.evidence.reader import Bundle
from harness.evidence.retention import Keep, prune
from harness.evidence.schema import Verdict
from harness.evidence.writer import BundleWriter, now
from harness.judges import judge
from harness.report import page
from harness.settings import Settings

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    verdict: Verdict
    bundle: Path
    report: Path | None
    """None: it could not be written."""


def finish(writer: BundleWriter, progress: Progress) -> Outcome:
    """Judge what is in the bundle, write the verdict into it, and the report beside it."""
    writer.update(ended_at=now())
    writer.close()
    bundle = Bundle.open(writer.path)
    verdict = judge(bundle)
    writer.verdict(verdict)
    report = _report(writer, bundle, verdict, progress)
    writer.done()
    return Outcome(verdict, writer.path, report)


def _report(writer: BundleWriter, bundle: Bundle, verdict: Verdict, progress: Progress) -> Path | None:
    """A report is no evidence: what keeps it from being written changes no verdict, and where the evidence
    found the disk full, the report does not take what is left of it."""
    try:
        if writer.full is not None:
            raise writer.full
        return page.write(bundle, verdict)
    except Exception as error:
        said = writer.redactor.text(str(error).partition("\n")[0] or type(error).__name__)
        progress(f"no report ({said}): `harness report {writer.path} --output FILE` writes it elsewhere")
        return None


def tidy(settings: Settings, progress: Progress, *spare: Path) -> None:
    """Remove bundles that `keep_runs` does not keep. What goes wrong is told, and changes no verdict."""
    try:
        removed = prune(settings.runs_dir, Keep.parse(settings.keep_runs), spare)
    except (HarnessError, OSError, KeyboardInterrupt) as error:
        progress(f"not every bundle that is not to be kept was removed: {str(error) or 'SIGINT'}")
    else:
        for each in removed:
            progress(
                f"removed {each.bundle}, {each.bytes / 2**20:.1f} MiB: keep_runs is {settings.keep_runs}"
            )
