"""Write a Markdown job summary with the launches, their results and retried operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.report import markdown
from harness.report.amounts import ranges
from harness.report.ci.ctrf import STATUSES, Test
from harness.report.ci.github import annotation
from harness.report.ci.launch_properties import Launched

MARK = {"PASS": "✅", "FAIL": "❌", "UNKNOWN": "❔"}
LONGEST = 400
"""Maximum number of characters per cell. The report contains the full text."""
MAX_ROWS = 500


@dataclass(frozen=True)
class Row:
    """A launch in the summary. `test` is empty if the launch did not run in a test."""

    launch: Launched
    test: str = ""


def launches(rows: Sequence[Row]) -> str:
    """Return a table of launches, failures first, followed by netcheck and acceptance results and retries."""
    ordered = sorted(rows, key=lambda row: row.launch.verdict == "PASS")
    tests = any(row.test for row in rows)
    head = ["", *(["test"] if tests else []), "verdict", "ranks", "explanation", "report"]
    lines = markdown.table(head, [_cells(row, tests) for row in ordered[:MAX_ROWS]])
    if len(ordered) > MAX_ROWS:
        lines += [f"{len(ordered) - MAX_ROWS} more launches are not shown.", ""]
    for row in ordered[:MAX_ROWS]:
        if row.launch.matrix:
            name = text(row.test or row.launch.bundle)
            lines += [f"**Which pods can reach each other** ({name}):", "", *row.launch.matrix, ""]
        if row.launch.acceptance:
            # GitHub's Markdown needs an empty line before a list, but `acceptance` has no empty lines.
            title, *rest = row.launch.acceptance
            table = [line for line in rest if line.startswith("|")]
            other_lines = [line for line in rest if not line.startswith("|")]
            lines += [f"{title} {text(row.test or row.launch.bundle)}", "", *table, "", *other_lines, ""]
    retried = [
        f"- {text(row.test or row.launch.bundle)}: {text(line)}"
        for row in ordered
        for line in row.launch.retries
    ]
    if retried:
        lines += [f"**Tried again** ({len(retried)}):", "", *retried[:MAX_ROWS], ""]
    return "\n".join(lines)


def _cells(row: Row, tests: bool) -> list[str]:
    launch = row.launch
    return [
        MARK[launch.verdict],
        *([text(row.test)] if tests else []),
        " ".join(filter(None, [launch.verdict, markdown.code(launch.cause)])),
        ranges(launch.ranks),
        text(launch.explanation),
        text(launch.report or launch.bundle),
    ]


def session(tests: Sequence[Test], rows: Sequence[Row]) -> str:
    """Return the summary for a pytest session: counts, failures, flaky tests and launches."""
    counts = [f"{n} {status}" for status in STATUSES if (n := sum(test.status == status for test in tests))]
    flaky = [test for test in tests if test.flaky]
    counts += [f"{len(flaky)} flaky"] if flaky else []
    lines = ["## Tests", "", f"**{', '.join(counts) or 'none ran'}**", ""]
    failed = [test for test in tests if test.status == "failed"]
    for title, group in (("Failed", failed), ("Flaky: passed, but not on the first attempt", flaky)):
        if group:
            lines += [f"### {title}", ""]
            lines += [f"- {text(test.name)}{_attempts(test)}" for test in group[:MAX_ROWS]] + [""]
    if rows:
        lines += ["### Launches", "", launches(rows)]
    return "\n".join(lines) + "\n"


def of_launch(row: Row) -> Iterator[str]:
    """Yield annotations: an error if the launch did not pass, and a notice if operations were retried."""
    launch = row.launch
    if launch.verdict != "PASS":
        title = " ".join(filter(None, [launch.verdict, launch.cause]))
        yield annotation("error", f"{launch.explanation}\n{launch.report or launch.bundle}", title=title)
    if launch.retries:
        yield annotation("notice", "\n".join(launch.retries), title=f"tried again: {launch.bundle}")


def of_test(test: Test) -> Iterator[str]:
    """Yield an annotation at a test's line of code if the test failed or is flaky."""
    location = {"file": test.file_path, "line": test.line}
    if test.status == "failed":
        yield annotation("error", test.message or "failed", title=test.name, **location)
    elif test.flaky:
        first = next(a for a in test.retry_attempts or [] if a.status == "failed")
        message = (
            f"passed on attempt {test.retries + 1}; an earlier attempt failed: "
            f"{first.message or 'no message'}"
        )
        yield annotation("warning", message, title=f"flaky: {test.name}", **location)


def _attempts(test: Test) -> str:
    message = test.message or next((a.message for a in test.retry_attempts or [] if a.message), None)
    suffix = f" ({test.retries + 1} attempts)" if test.retries else ""
    return f"{suffix}: {text(message)}" if message else suffix


def text(plain: str) -> str:
    """Format plain text for a cell, shortened and escaped so that it is not parsed as markup."""
    return markdown.text(plain if len(plain) <= LONGEST else plain[:LONGEST] + " …")
