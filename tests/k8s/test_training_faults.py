"""Trainings with one defect each, on a real cluster: the verdict names it, and the rank where it is of one.

The defects are real (harness/workers/training/faulty.py): the trainer itself takes wrong data, writes wrong
sums or breaks a checkpoint, and the judges get nothing but the evidence of any other training. `make test`
runs one of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from harness import run as running
from harness.context import RunContext
from harness.fixtures.plugin import record
from harness.launch import training
from harness.provision.cluster import Ready
from harness.report.finalize import Outcome
from harness.settings import Settings

pytestmark = [pytest.mark.e2e, pytest.mark.training]
RANKS = 4
SMALL = ("--width", "32", "--layers", "1", "--context", "64", "--batch", "64", "--micro-batch", "16")
OPTIONS = (*SMALL, "--epochs", "2", "--save-every", "12", "--keep", "20", "--log-every", "1")
"""64 steps: two epochs over the texts that are made, and checkpoints at 12, 24, 32, 36, 48, 60 and 64."""
WAIT_SECONDS = 240.0
Train = Callable[..., Outcome]


@dataclass(frozen=True)
class Case:
    """`defect`: KIND[:NUMBER] of training.faulty; `cause`: of the family `training`."""

    defect: str
    cause: str
    ranks: Sequence[int] = ()
    says: str = ""
    """What the explanation must hold."""
    options: tuple[str, ...] = ()
    restarts: int = 3
    kind: str = "statefulset"


ALL = tuple(range(RANKS))
QUICK = Case("other-seed:2", "rank_with_other_seed", [2], "64 steps")
CASES = (
    # checkpoints
    Case("torn:24", "checkpoint_torn", says="epoch-0000-step-00000024: rank-0/model.safetensors has"),
    Case("torn:64", "checkpoint_torn", says="epoch-0002-step-00000064: rank-0/model.safetensors has"),
    Case("unsaved", "checkpoint_missing"),
    Case("nan-weight:40", "weights_not_finite", says="tokens.weight in epoch-0001-step-00000048"),
    Case("frozen", "parameter_frozen", says="norm.weight"),
    # `best`, and the evaluation
    Case("stale-best", "best_is_stale", says="leads to epoch-0001-step-00000032"),
    Case("removed-best", "best_is_stale", says="leads to nothing", options=("--keep", "2")),
    Case("double-tail", "evaluation_wrong", says="tokens; evaluated again"),
    Case("mean-of-ranks", "evaluation_wrong", says="evaluated again"),
    Case("edited:64", "evaluation_wrong", says="0002-step-00000064 says"),
    Case("not-evaluated:1", "epoch_not_evaluated", says="step 31"),
    Case("not-evaluated:2", "epoch_not_evaluated", says="step 63"),
    Case("perplexity", "perplexity_wrong", says="step 31"),
    Case("easy", "loss_below_entropy", options=("--epochs", "4", "--lr", "2e-2")),
    # data, and resuming
    Case("other-seed:0", "rank_with_other_seed", [0]),
    Case("silent:1", "data_missed", [1], "did not say what it took"),
    Case("repeated-data:18", "data_repeated", ALL, "from step 12 on"),
    Case("repeated-data:18", "data_repeated", ALL, "from step 12 on", kind="job"),
    Case("half-resumed:18", "resume_differs", [0], "train/loss at step 13"),
    Case("nan:20", "loss_not_finite", [1], says="the loss of step 20 is nan", restarts=0),
)


@pytest.fixture(scope="module")
def train(cluster: Ready, harness_settings: Settings) -> Train:
    """Return what launches a training."""

    def trained(*, options: tuple[str, ...] = (), **asked: Any) -> Outcome:
        settings = harness_settings.model_copy(update={"wait_seconds": WAIT_SECONDS})
        workload = training.workload(
            training.Asked(replicas=RANKS, options=(*OPTIONS, *options), run="train", **asked)
        )
        context = RunContext(settings=settings, progress=lambda text: print(f"  {text}", file=sys.stderr))
        return running.launch(workload, context, cluster)

    return trained


def fails(outcome: Outcome, cause: str, ranks: Sequence[int] = (), says: str = "") -> None:
    """Assert the verdict of a training, its cause first and no vague one in its place."""
    seen = outcome.verdict
    told = f"{seen.verdict} {seen.cause} {seen.ranks}: {seen.explanation} {seen.consequences}"
    told += f" [{outcome.bundle}]"
    assert (seen.verdict, seen.cause) == ("FAIL", f"training.{cause}"), told
    assert list(seen.ranks) == list(ranks), told
    assert says in seen.explanation, told


def _launched(train: Train, case: Case) -> Outcome:
    return train(
        trainer=("training.faulty", case.defect),
        options=case.options,
        restarts=case.restarts,
        kind=case.kind,
    )


def test_a_rank_with_another_seed_is_named(train: Train, record_property: Any) -> None:
    """Contract: the one of four ranks that shuffles with another seed is named, and that it always did."""
    outcome = _launched(train, QUICK)
    record(outcome, record_property)
    fails(outcome, QUICK.cause, QUICK.ranks, QUICK.says)


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.defect} {case.kind}")
def test_a_defect_is_named(train: Train, case: Case) -> None:
    """Contract: FAIL with the defect's own cause, and the ranks, folder, weight or step that it is of."""
    fails(_launched(train, case), case.cause, case.ranks, case.says)


@pytest.mark.nightly
def test_a_training_without_a_defect_passes(train: Train) -> None:
    """Contract: the same launch with the right trainer is a PASS. Compared with it, another seed is none."""
    right = train()
    seen = right.verdict
    assert seen.verdict == "PASS", f"{seen.cause} {seen.ranks}: {seen.explanation} [{right.bundle}]"
    digest = training.weights_of(right.bundle, right.bundle.parent)
    fails(train(options=("--seed", "7"), same_as=digest), "differs_from", says=digest[1])


@pytest.mark.nightly
def test_a_loss_that_does_not_come_near_enough(train: Train) -> None:
    """Contract: the distance and what was asked for are said."""
    outcome = train(options=("--max-steps", "12"), reach=0.01)
    fails(outcome, "loss_not_reached", says="--reach asks for 1.0% at most")
