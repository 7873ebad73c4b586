"""Generated training programs in containers, without a cluster: no PASS is wrong."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from harness.context import RunContext
from harness.faults.program_run import FATAL, programs
from harness.settings import Settings

pytestmark = pytest.mark.programs
SECONDS = 20.0
NIGHTLY_SECONDS = 1800.0
LEDGER = Path(__file__).parents[2] / "docs" / "programs.json"


def _no_pass_is_wrong(seed: int, seconds: float, ledger: Path | None, settings: Settings) -> None:
    """Other misses are counted in the ledger, and fail nothing yet."""
    context = RunContext(settings=settings, progress=print)
    outcomes = programs(seed, seconds, 2, ledger, False, [], context)
    assert outcomes, f"no program of seed {seed} ended in {seconds:.0f} s"
    assert not (wrong := [outcome.line for outcome in outcomes if outcome.word in FATAL]), "\n".join(wrong)


def test_no_pass_of_a_new_seed_is_wrong(harness_settings: Settings) -> None:
    _no_pass_is_wrong(secrets.randbelow(1 << 30), SECONDS, None, harness_settings)


@pytest.mark.nightly
def test_no_pass_of_half_an_hour_is_wrong(harness_settings: Settings) -> None:
    _no_pass_is_wrong(secrets.randbelow(1 << 30), NIGHTLY_SECONDS, LEDGER, harness_settings)
