"""Trainings with one defect each, on a real cluster: the verdict names it, and the rank where it is of one.

The defects are real (harness/workers/training/faulty.py): the trainer itself takes wrong data, writes wrong
sums or breaks a checkpoint, and the judges get nothing but the evidence of any other training. `make test`
runs one of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fault_matrix import each, faults_of, is_right, started

from harness import run as running
from harness.context import RunContext
from harness.faults.catalogue_run import CONTROL, Matrix
from harness.faults.fault_file import Train
from harness.faults.fault_job import TRAINER
from harness.launch.workloads import training
from harness.launch.workloads.training_spec import TrainingSpec
from harness.provision.cluster import Ready
from harness.report.finalize import Outcome
from harness.settings import Settings

pytestmark = pytest.mark.training
FAULTS = faults_of("training")
HEALTHY = CONTROL.model_copy(update={"train": Train()})


@pytest.fixture(scope="module")
def matrix(request: pytest.FixtureRequest, cluster: Ready, harness_settings: Settings) -> Iterator[Matrix]:
    """One after the other: four ranks that compute are what this machine can bear."""
    with started(request, cluster, harness_settings, 1, control=HEALTHY) as matrix:
        yield matrix


@each(FAULTS)
def test_a_defect_is_named(matrix: Matrix, name: str, record_property: Any) -> None:
    """Contract: its own cause, and the ranks, folder, weight or step that it is of; without it, a PASS."""
    is_right(matrix, name, record_property)


@pytest.fixture(scope="module")
def train(cluster: Ready, harness_settings: Settings) -> Callable[..., Outcome]:
    """Return what launches a training without a defect."""

    def trained(*options: str, **asked: Any) -> Outcome:
        settings = harness_settings.model_copy(update={"wait_seconds": 240.0})
        workload = training.workload(TrainingSpec(options=(*TRAINER.split(), *options), **asked))
        context = RunContext(settings=settings, progress=lambda text: print(f"  {text}", file=sys.stderr))
        return running.launch(workload, context, cluster)

    return trained


def failed(outcome: Outcome, cause: str, says: str) -> None:
    seen = outcome.verdict
    assert (seen.verdict, seen.cause) == ("FAIL", cause), f"{seen.explanation} [{outcome.bundle}]"
    assert says in seen.explanation


@pytest.mark.nightly
def test_another_seed_is_no_resumed_training(train: Callable[..., Outcome]) -> None:
    """Contract: with --same-as, weights that are not those of the other training are a FAIL."""
    first = train()
    assert first.verdict.verdict == "PASS", f"{first.verdict.explanation} [{first.bundle}]"
    digest = training.weights_of(first.bundle, first.bundle.parent)
    failed(train("--seed", "7", same_as=digest), "training.differs_from", digest[1])


@pytest.mark.nightly
def test_a_loss_that_does_not_come_near_enough(train: Callable[..., Outcome]) -> None:
    """Contract: the distance and what was asked for are said."""
    outcome = train("--max-steps", "12", reach=0.01)
    failed(outcome, "training.loss_not_reached", "--reach allows at most 1.0%")
