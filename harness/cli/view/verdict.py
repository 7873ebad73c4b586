"""Print a verdict and return its exit code."""

from __future__ import annotations

from pathlib import Path

from harness.cli.options import dump
from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Verdict
from harness.report.terminal.console import Console

EXIT = {"PASS": 0, "FAIL": 1, "UNKNOWN": 2}


def show(verdict: Verdict, bundle: Path, as_json: bool) -> int:
    """Print a verdict and the paths of its bundle and report.

    Return the exit code. Paths in JSON are absolute, because the program that reads the JSON might run in
    another folder. If there is no report, `report` is null.
    """
    if as_json:
        path = bundle.resolve()
        report = path / "report.html"
        places = {"bundle": str(path), "report": str(report) if report.is_file() else None}
        dump({**verdict.model_dump(mode="json"), **places})
    else:
        if bundle.is_relative_to(Path.cwd()):
            bundle = bundle.relative_to(Path.cwd())
        from harness.judge.acceptance.expected_nodes import of_bundle
        from harness.report.html.attempts import attempts
        from harness.report.html.netcheck import matrix
        from harness.report.terminal import verdict as terminal

        evidence = Bundle(bundle)
        stages = evidence.manifest.stages if evidence.manifest else []
        terminal.render(
            verdict,
            stages,
            bundle,
            Console(),
            attempts(evidence, verdict),
            matrix(evidence),
            of_bundle(evidence),
        )
    return EXIT[verdict.verdict]
