"""Fixtures of the judges' tests. A test file whose bundles are written otherwise has its own."""

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
    """Return judged(job): write the job's bundle, with what follows from its rows, and judge it."""
    numbers = count()

    def judged_(job: bundles.Job) -> Verdict:
        job.refresh()
        return judge(job.write(tmp_path / f"bundle{next(numbers)}"))

    return judged_
