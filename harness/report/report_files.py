"""Write a bundle's report files: `report.html` for people, and `ctrf.json` and `junit.xml` for CI.

If a bundle contains acceptance tests, `fleet.json` is written too. The judge does not read these files. They
are derived only from the redacted bundle and its verdict, so they can be rewritten at any time. Writes are
atomic.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.evidence.io.files import replace_file
from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Verdict
from harness.judge.acceptance.expected_nodes import FILE
from harness.report.ci import junit, suite
from harness.report.html import acceptance, page

FILES: dict[str, Callable[[Bundle, Verdict], str]] = {
    page.REPORT: page.render,
    suite.CTRF: suite.as_ctrf,
    junit.JUNIT: junit.as_junit,
}
"""The report files, in the order in which they are written.

ctrf.json and junit.xml record whether report.html exists, so they are written after it.
"""


def write(bundle: Bundle, verdict: Verdict) -> dict[str, Exception]:
    """Write all FILES to the bundle, and fleet.json if there were acceptance tests.

    If a file cannot be written, the remaining files are still written. Returns the errors by file name.
    """
    failed: dict[str, Exception] = {}
    files = FILES | ({acceptance.FLEET: acceptance.as_json} if bundle.has(FILE) else {})
    for name, text in files.items():
        try:
            replace_file(bundle.path / name, text(bundle, verdict))
        except Exception as error:
            failed[name] = error
    return failed
