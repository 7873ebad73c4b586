"""Fixtures for the tests of the judges. Test files that write their bundles in another way define their
own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import bundles
import pytest

from harness.evidence.schema.bundle import Verdict
from harness.judge import judge


@pytest.fixture
def judged(tmp_path: Path) -> Callable[[bundles.Job], Verdict]:
    """Return a function that updates the records derived from a job's rows, writes the job's bundle and
    judges it."""
    numbers = count()

    def judged_(job: bundles.Job) -> Verdict:
        job.refresh()
        return judge(job.write(tmp_path / f"bundle{next(numbers)}"))

    return judged_
