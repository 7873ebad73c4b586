"""Print a verdict, and turn it into an exit code."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from harness.cli.options import dump
from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Verdict

EXIT = {"PASS": 0, "FAIL": 1, "UNKNOWN": 2}


def show(verdict: Verdict, bundle: Path, as_json: bool) -> int:
    """Print a verdict and where its bundle and report are. Returns the exit code.

    In JSON the paths are absolute, because whoever reads it may be in another folder; `report` is null
    where there is none.
    """
    if as_json:
        path = bundle.resolve()
        report = path / "report.html"
        places = {"bundle": str(path), "report": str(report) if report.is_file() else None}
        dump({**verdict.model_dump(mode="json"), **places})
    else:
        if bundle.is_relative_to(Path.cwd()):
            bundle = bundle.relative_to(Path.cwd())
        from harness.judge.acceptance.bundle import of_bundle
        from harness.report.html.attempts import attempts
        from harness.report.html.netcheck import matrix
        from harness.report.terminal import verdict as terminal

        found = Bundle(bundle)
        stages = found.manifest.stages if found.manifest else []
        terminal.render(
            verdict,
            stages,
            bundle,
            Console(),
            attempts(found, verdict),
            matrix(found),
            of_bundle(found),
        )
    return EXIT[verdict.verdict]
