"""`harness report` and `harness summary`: what bundles say, for people and for CI, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.errors import HarnessError, UsageError
from harness.evidence.reader import Bundle
from harness.options import Json, dump
from harness.report import github, page
from harness.report.launched import launched
from harness.report.summary import Row, launches, of_launch
from harness.verdict import judge

LATEST = Path("runs/latest")


def recorded(path: Path) -> Bundle:
    """The bundle in a folder. Raises UsageError where there is none."""
    if not (path / "manifest.json").is_file():
        raise UsageError(f"{path} is not a bundle: it has no manifest.json", hint="harness runs lists them")
    return Bundle.open(path)


def report(
    bundle: Annotated[Path, typer.Argument(help="a bundle folder")] = LATEST,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="where to [report.html in the bundle]")
    ] = None,
    as_json: Json = False,
) -> int:
    """Judge a recorded bundle again and write its report, one HTML file that needs nothing else."""
    evidence = recorded(bundle)
    target = output or bundle / page.REPORT
    verdict = judge(evidence)
    try:
        page.write(evidence, verdict, target)
    except OSError as error:
        raise HarnessError(
            f"{target} could not be written: {error.strerror}", hint="--output FILE writes it elsewhere"
        ) from error
    if as_json:
        dump({"report": str(target), "verdict": verdict.verdict, "cause": verdict.cause})
    else:
        print(target)
    return 0


def summary(
    bundles: Annotated[list[Path] | None, typer.Argument(help="bundle folders [runs/latest]")] = None,
) -> int:
    """Judge recorded bundles again and print them as a table in Markdown.

    In GitHub Actions the table goes to the job's summary, and what is not a
    PASS, or was tried again, becomes an annotation.
    """
    rows = [Row(launched(judge(recorded(path)), path)) for path in bundles or [LATEST]]
    if (file := github.summary_file()) is not None:
        github.append(file, "## Launches\n\n" + launches(rows))
    else:
        print(launches(rows), end="")
    if github.active():
        for line in (line for row in rows for line in of_launch(row)):
            print(line)
    return 0
