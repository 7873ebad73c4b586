"""What the controller refuses after an object was made is listed, with the reason why CEL cannot."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
RAISED = re.compile(r'(?:Refused|_reject)\(\s*"(\w+)"')


def test_every_refusal_is_in_the_docs() -> None:
    """Contract: there is no webhook because nothing is left that it would add: each refusal has its line."""
    sources = (ROOT / "harness/torchrun_controller").rglob("*.py")
    raised = {reason for source in sources for reason in RAISED.findall(source.read_text())}
    document = (ROOT / "docs/reference/torchrun-controller.md").read_text()
    table = document.partition("## Refusals")[2].partition("\n## ")[0]
    listed = {reason for row in table.splitlines() for reason in re.findall(r"^\| `(\w+)`", row)}
    assert len(raised) > 5
    assert listed == raised


def test_each_missing_object_has_a_test() -> None:
    """Contract: each row of "Missing objects" names tests on a cluster that are there."""
    document = (ROOT / "docs/reference/torchrun-controller.md").read_text()
    table = document.partition("## Missing objects")[2].partition("\n## ")[0]
    rows = [row for row in table.splitlines() if row.startswith("| ")][1:]
    written = "".join(path.read_text() for path in (ROOT / "tests/k8s").glob("test_torchrun_*.py"))
    assert len(rows) > 10
    for row in rows:
        tests = re.findall(r"test_\w+", row)
        assert tests, row
        assert all(f"def {test}(" in written for test in tests), row
