"""The lines that are meant for the harness are known in one place."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.evidence.io.harness_log_lines import MARKS, is_own

HARNESS = Path(__file__).parents[3] / "harness"


@pytest.mark.parametrize("mark", MARKS)
def test_a_harness_line_is_not_a_program_line(mark: str) -> None:
    assert is_own(f"2026-11-21T05:00:01Z {mark}abc 0")
    assert not is_own(f"2026-11-21T05:00:01Z loss 0.5 {mark.replace('@', '')}")


def test_every_mark_of_the_workers_is_one_of_them() -> None:
    """Contract: a new kind of line is shown to nobody, unless somebody decides so."""
    texts = (path.read_text() for path in (HARNESS / "workers").rglob("*.py"))
    marks = {line.split('"')[1] for text in texts for line in text.splitlines() if 'MARK = "@' in line}
    assert marks == set(MARKS)
