"""What the controller refuses after an object was made is listed, with the reason why CEL cannot."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
RAISED = re.compile(r'(?:Refused|_refuse)\(\s*"(\w+)"')


def test_every_refusal_is_in_the_docs() -> None:
    """Contract: there is no webhook because nothing is left that it would add: each refusal has its line."""
    sources = (ROOT / "harness/torchrun_controller").glob("*.py")
    raised = {reason for source in sources for reason in RAISED.findall(source.read_text())}
    table = (
        (ROOT / "docs/torchrun-controller.md").read_text().partition("## No webhook")[2].partition("\n## ")[0]
    )
    listed = {reason for row in table.splitlines() for reason in re.findall(r"^\| `(\w+)`", row)}
    assert len(raised) > 5
    assert listed == raised
