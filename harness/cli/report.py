"""`harness report` and `harness summary`: write reports about bundles for people and for CI, offline."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import Json, dump
from harness.cli.view.lazy import opened
from harness.core.errors import HarnessError

if TYPE_CHECKING:
    from harness.evidence.io.reader import Bundle

LATEST = Path("runs/latest")


def report(
    bundle: Annotated[Path, typer.Argument(help="a bundle folder")] = LATEST,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="write only the HTML report, to this file (default: report.html in the bundle)",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Judge a recorded bundle again and write its report, a self-contained HTML file.

    Without --output, the command also rewrites ctrf.json and junit.xml in the bundle.
    """
    from harness.judge.users import judge
    from harness.report import report_files
    from harness.report.html import page

    evidence = opened(bundle)
    target = output or _shown(bundle, evidence) / page.REPORT
    verdict = judge(evidence)
    errors: dict[str, Exception] = {}
    if output is None:
        errors = report_files.write(evidence, verdict)
    else:
        try:
            page.write(evidence, verdict, output)
        except OSError as error:
            errors[output.name] = error
    for name, cause in errors.items():
        if not isinstance(cause, OSError):
            raise cause
        raise HarnessError(
            f"{target.with_name(name)} could not be written: {cause.strerror}",
            hint="--output FILE writes the page elsewhere",
        ) from cause
    if as_json:
        dump({"report": str(target), "verdict": verdict.verdict, "cause": verdict.cause})
    else:
        print(target)
    return 0


def summary(
    bundles: Annotated[
        list[Path] | None, typer.Argument(help="bundle folders (default: runs/latest)")
    ] = None,
) -> int:
    """Judge recorded bundles again and print their verdicts as a Markdown table.

    In GitHub Actions, the table is written to the job summary. A bundle that did
    not pass, or that had retries, also gets an annotation.
    """
    from harness.judge.users import judge
    from harness.report.ci import github
    from harness.report.ci.launch_properties import launched
    from harness.report.ci.summary import Row, launches, of_launch

    pairs = [(path, opened(path)) for path in bundles or [LATEST]]
    rows = [Row(launched(judge(bundle), _shown(path, bundle))) for path, bundle in pairs]
    if (file := github.summary_file()) is not None:
        github.append(file, "## Launches\n\n" + launches(rows))
    else:
        print(launches(rows), end="")
    if github.active():
        for line in (line for row in rows for line in of_launch(row)):
            print(line)
    return 0


def _shown(path: Path, bundle: "Bundle") -> Path:
    """Return `path` if it is a folder.

    If it is only part of a bundle's name, return the path of the bundle.
    """
    return path if path.is_dir() else bundle.path


COMMANDS = (report, summary)
