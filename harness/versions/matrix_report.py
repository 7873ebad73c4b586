"""Write the results of a matrix as JSON, Markdown, CTRF and HTML.

matrix.json   the results (results.Document)
matrix.md     a Markdown table, which is also appended to the job summary in GitHub Actions
ctrf.json     the results as CTRF, with one test per cell
matrix.html   a page whose cells link to the launches' reports, with links relative to the folder
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

from harness.core.clock import now, seconds
from harness.evidence.io.files import replace_file
from harness.evidence.io.reader import Bundle
from harness.report import markdown
from harness.report.ci import ctrf, github
from harness.report.ci.launch_properties import launched
from harness.report.ci.summary import text
from harness.versions.cell import Outcome
from harness.versions.matrix_results import STATUSES, CellResult, Document, Status
from harness.versions.matrix_text import Grid, grid, word

JSON, MARKDOWN, CTRF, PAGE = "matrix.json", "matrix.md", "ctrf.json", "matrix.html"
EMOJI: Final[dict[Status, str]] = {
    "passed": "✅",
    "failed": "❌",
    "expected failure": "✅",
    "unexpected pass": "❕",
    "flaky": "⚠️",
    "not run": "⏹️",
}
_CTRF: Final[dict[Status, ctrf.Status]] = {
    "passed": "passed",
    "failed": "failed",
    "expected failure": "passed",
    "unexpected pass": "passed",
    "flaky": "passed",
    "not run": "pending",
}


def write(document: Document) -> None:
    """Write all files into the matrix's folder and, in GitHub Actions, the job summary and annotations."""
    folder = Path(document.folder)
    replace_file(folder / JSON, document.model_dump_json(indent=2) + "\n")
    summary = as_markdown(document)
    replace_file(folder / MARKDOWN, summary)
    replace_file(folder / CTRF, as_ctrf(document))
    replace_file(folder / PAGE, as_html(document))
    if (file := github.summary_file()) is not None:
        github.append(file, summary)
    if github.active():
        for line in github_annotations(document):
            print(line)


def as_markdown(document: Document) -> str:
    """Return the results as Markdown: the table, the cells that did not pass and the excluded cells."""
    components = f" {text(document.others)}" if document.others else ""
    lines = ["## Versions", "", f"**{document.summary}** of `{document.job}`{components}", ""]
    lines += grid_table(layout) if (layout := grid(document)) is not None else _list(document)
    not_passed = [cell for cell in document.cells if cell.status != "passed" and cell.shown is not None]
    rows = [
        [
            EMOJI[cell.status],
            text(cell.name),
            text(word(cell)),
            text(cell.shown.explanation if cell.shown else ""),
            text(_place(document, cell.shown) if cell.shown else ""),
        ]
        for cell in not_passed
    ]
    lines += markdown.table(["", "versions", "result", "explanation", "evidence"], rows)
    lines += [f"- not launched: {text(name)} ({text(reason)})" for name, reason in document.excluded.items()]
    lines += [f"- {text(note)}" for note in document.notes]
    if document.bisects:
        commands = [shlex.join(command) for command in document.bisects]
        lines += ["", "To find the version:", "", "```bash", *commands, "```"]
    dates = [
        f"{text(value.label)} of {package}: {value.released}"
        for package, values in document.axes.items()
        for value in values
        if value.released
    ]
    lines += ["", f"Released: {'; '.join(dates)}."] if dates else []
    return "\n".join(lines) + "\n"


def grid_table(layout: Grid) -> list[str]:
    """Return the grid as a Markdown table."""
    head = [f"{text(layout.row_package)} \\\\ {text(layout.column_package)}", *map(text, layout.columns)]
    rows = [[text(row), *map(_words, cells)] for row, cells in layout.rows.items()]
    return markdown.table(head, rows)


def _list(document: Document) -> list[str]:
    rows = [
        [*(text(cell.versions[name]) for name in document.axes), _words(cell), _seconds(cell)]
        for cell in document.cells
    ]
    return markdown.table([*map(text, document.axes), "result", "seconds"], rows)


def _words(cell: CellResult | None) -> str:
    return f"{EMOJI[cell.status]} {text(word(cell))}" if cell is not None else ""


def _seconds(cell: CellResult) -> str:
    return f"{sum(outcome.seconds for outcome in cell.outcomes):.0f}" if cell.outcomes else ""


def _place(document: Document, outcome: Outcome) -> str:
    return _relative(document, outcome.report or outcome.bundle or outcome.log)


def _relative(document: Document, path: object) -> str:
    return os.path.relpath(str(path), document.folder) if path else ""


def as_ctrf(document: Document) -> str:
    """Return the results as CTRF. Each cell is a test, and each launch before the last is a retry attempt."""
    start = round((seconds(document.started_at) or 0) * 1000)
    tests = [_test(document, cell, start) for cell in document.cells]
    stop = max([start, *(test.stop for test in tests)])
    first = min([start, *(test.start for test in tests)])
    return ctrf.document(tests, ctrf.Tool(name="pluto-e2e-harness"), first, stop, now()).text()


def _test(document: Document, cell: CellResult, start: int) -> ctrf.Test:
    attempts = [_attempt(cell, outcome) for outcome in cell.outcomes]
    if not attempts:
        return ctrf.Test(name=cell.name, status="pending", duration=0, start=start, stop=start)
    outcome_shown, last = cell.shown, attempts[-1]
    assert outcome_shown is not None
    report = [
        ctrf.Attachment(name="report", content_type="text/html", path=_relative(document, outcome.report))
        for outcome in cell.outcomes
        if outcome.report
    ]
    tags: list[str] | None = [cell.status] if cell.status in ("expected failure", "unexpected pass") else None
    return ctrf.Test(
        name=cell.name,
        status=_CTRF[cell.status],
        raw_status=word(cell),
        duration=last.duration,
        start=last.start,
        stop=last.stop,
        suite=[document.job],
        message=None
        if outcome_shown.passed
        else ": ".join(filter(None, [outcome_shown.cause, outcome_shown.explanation])),
        retries=len(attempts) - 1,
        retry_attempts=attempts[:-1] or None,
        flaky=cell.status == "flaky",
        tags=tags,
        attachments=report or None,
        extra={"versions": cell.versions, "launches": list(_facts(cell))},
    )


def _attempt(cell: CellResult, outcome: Outcome) -> ctrf.Attempt:
    start = round((seconds(outcome.started_at) or 0) * 1000)
    duration = round(outcome.seconds * 1000)
    return ctrf.Attempt(
        attempt=outcome.attempt,
        status="passed" if cell.is_expected(outcome) else "failed",
        duration=duration,
        start=start,
        stop=start + duration,
        message=None if outcome.passed else outcome.explanation or None,
    )


def _facts(cell: CellResult) -> Iterator[dict[str, object]]:
    for outcome in cell.outcomes:
        path = Path(outcome.bundle) if outcome.bundle else None
        if path is not None and path.is_dir() and (verdict := Bundle(path).recorded_verdict) is not None:
            yield launched(verdict, path).model_dump()


def github_annotations(document: Document) -> Iterator[str]:
    """Yield GitHub annotations: an error for each unexpected result, and a warning for each flaky cell."""
    for cell in document.cells:
        outcome = cell.shown
        message = f"{word(cell)}\n{outcome.explanation if outcome else ''}".strip()
        if cell.exit_code:
            yield github.annotation("error", message, title=cell.name)
        elif cell.status in ("flaky", "unexpected pass"):
            yield github.annotation("warning", message, title=cell.name)


def as_html(document: Document) -> str:
    """Return the HTML page. It contains no scripts and loads no other files."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader(
            [PackageLoader("harness.versions", "files"), PackageLoader("harness.report", "files")]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("matrix.html.j2").render(
        document=document,
        grid=grid(document),
        cells=sorted(document.cells, key=lambda cell: STATUSES.index(cell.status)),
        word=word,
        bisects=[shlex.join(command) for command in document.bisects],
        link=lambda path: quote(_relative(document, path)),
    )
