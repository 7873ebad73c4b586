"""Write what a bundle holds beside its evidence: `report.html` for people, `ctrf.json` and `junit.xml` for
CI, and `fleet.json` for programs, where acceptance tests ran.

No judge reads these files. They are made from the redacted bundle and its verdict alone, so they can always
be made again. Each is written whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.evidence.io.files import replace_file
from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Verdict
from harness.judge.acceptance.bundle import FILE
from harness.report.ci import cases
from harness.report.html import acceptance, page

FILES: dict[str, Callable[[Bundle, Verdict], str]] = {
    page.REPORT: page.render,
    cases.CTRF: cases.as_ctrf,
    cases.JUNIT: cases.as_junit,
}
"""Written in this order: the later ones say whether there is a page."""


def write(bundle: Bundle, verdict: Verdict) -> dict[str, Exception]:
    """Write all FILES into the bundle, and fleet.json where acceptance tests ran.

    Returns the failures by name: a file that fails does not stop the others.
    """
    failed: dict[str, Exception] = {}
    files = FILES | ({acceptance.FLEET: acceptance.as_json} if bundle.has(FILE) else {})
    for name, text in files.items():
        try:
            replace_file(bundle.path / name, text(bundle, verdict))
        except Exception as error:
            failed[name] = error
    return failed
