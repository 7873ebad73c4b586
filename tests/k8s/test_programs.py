"""Generated training programs in containers, without a cluster: no PASS is wrong."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from harness.context import RunContext
from harness.faults.programs.session import FATAL, programs
from harness.settings import Settings

pytestmark = [pytest.mark.programs, pytest.mark.nightly]
SECONDS = 1800.0
LEDGER = Path(__file__).parents[2] / "docs" / "programs.json"


def test_no_pass_of_half_an_hour_is_wrong(harness_settings: Settings) -> None:
    """Contract: no program of a new seed gets a wrong PASS. The ledger counts other wrong verdicts."""
    context = RunContext(settings=harness_settings, progress=print)
    outcomes = programs(secrets.randbelow(1 << 30), SECONDS, 2, LEDGER, False, [], context)
    assert outcomes, f"no program ended in {SECONDS:.0f} s"
    assert not (wrong := [outcome.line for outcome in outcomes if outcome.word in FATAL]), "\n".join(wrong)
