"""Write docs/reference/tested-versions.md from the result of `harness matrix`.

python -m docs.make_tested_versions runs/matrix-…/matrix.json "COMMAND THAT MADE IT"
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from harness.report.markdown import code, table, text
from harness.versions.matrix_report import EMOJI, grid_table
from harness.versions.matrix_results import AxisValue, CellResult, Document
from harness.versions.matrix_text import grid, word

PAGE = Path(__file__).with_name("reference") / "tested-versions.md"
WIDTH = 120
BUILD = re.compile(r"-[0-9a-f]{12}$")
"""The end of the tag of an image that was built from source."""
STACK = {"kubernetes": "Kubernetes", "jobset": "JobSet", "kueue": "Kueue", "torch": "PyTorch"}


def page(document: Document, command: str) -> str:
    """Return the page. Raises ValueError if the matrix does not have two packages, or was not finished."""
    found = grid(document)
    if found is None or any(cell.status == "not run" for cell in document.cells):
        raise ValueError("expected a finished matrix of two packages")
    intro = (
        f"On {document.started_at[:10]}, `{document.job}` was launched with each combination of these "
        "versions. A cell shows the verdict. [Other versions](../how-to/versions.md) describes how to launch "
        "with your own."
    )
    lines = [
        "# Tested versions",
        "",
        "<!-- written by docs/make_tested_versions.py -->",
        "",
        *_wrapped(intro),
        "```bash",
        command,
        "```",
        "",
        *grid_table(found),
        *_wrapped(f"{document.summary}. {_launches(document)} {_stack(document)}"),
        *_unexpected(document.cells),
        "## Dates",
        "The dates on which the package index received the versions:",
        "",
        *table(["package", "version", "date"], list(_dates(document.axes))),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _wrapped(paragraph: str) -> list[str]:
    return [*textwrap.wrap(paragraph, WIDTH, break_long_words=False, break_on_hyphens=False), ""]


def _launches(document: Document) -> str:
    outcomes = [outcome for cell in document.cells for outcome in cell.outcomes]
    parallel = f"up to {document.parallel} at the same time" if document.parallel > 1 else "one at a time"
    repeated = len(outcomes) > len(document.cells)
    repeat = f" A cell that did not pass was launched up to {document.repeat} times." if repeated else ""
    return f"The matrix took {len(outcomes)} launches, {parallel}, on one cluster.{repeat}"


def _stack(document: Document) -> str:
    found = {
        name: {
            BUILD.sub("", outcome.versions[key])
            for cell in document.cells
            for outcome in cell.outcomes
            if key in outcome.versions
        }
        for key, name in STACK.items()
    }
    listed = [f"{name} {', '.join(sorted(versions))}" for name, versions in found.items() if versions]
    return f"The other parts of the stack: {', '.join(listed)}."


def _unexpected(cells: list[CellResult]) -> list[str]:
    rows = [
        [EMOJI[cell.status], text(cell.name), text(word(cell)), text(cell.shown.explanation)]
        for cell in cells
        if cell.status != "passed" and cell.shown is not None
    ]
    return (
        ["## Cells that did not pass", *table(["", "versions", "result", "explanation"], rows)]
        if rows
        else []
    )


def _dates(axes: dict[str, list[AxisValue]]) -> Iterator[list[str]]:
    for package, values in axes.items():
        for value in values:
            yield [package, code(value.version or value.label), value.released or ""]


def main(file: str, command: str) -> int:
    PAGE.write_text(page(Document.model_validate_json(Path(file).read_bytes()), command))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
