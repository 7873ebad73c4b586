"""A training that continues with fewer ranks: which steps each rank must have logged."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import bundles
import pytest
from training_audits import BATCH, BEGAN, LOSSES, SEED, SEQUENCES, STEPS, audit

from harness.evidence.schema.bundle import Check
from harness.evidence.schema.ground_truth import TruthRow, TruthStart
from harness.evidence.schema.training import AUDIT
from harness.judge import judge
from harness.judge.training.data_order import sums
from harness.workers.training import data_order

CHECKPOINT, KILLED = 2, 4
POINTS = ("ground-truth-complete", "no-lost-points", "values", "no-unexpected-points", "training-data")


def truth_rows(rank: int, world: int, steps: range, later: int = 0) -> list[TruthRow]:
    """Return the rows that a rank in a world of this size logs in these steps."""
    found = []
    for step in steps:
        epoch, place = divmod(step, data_order.steps(SEQUENCES, BATCH))
        chosen = data_order.batch_of(SEED, epoch, SEQUENCES, place * BATCH, BATCH)
        what = sums(list(data_order.share(chosen, rank, world)))
        values = {f"rank{rank}/train/loss": 1.0 + step + world / 10}
        values |= dict(zip([f"rank{rank}/data/{n}" for n in ("count", "sum", "squares")], what, strict=True))
        if rank == 0:
            values |= {"train/loss": 1.0 + step + world / 10, "train/ranks": float(world)}
        if rank == 0 and step in LOSSES:
            values |= {"val/loss": LOSSES[step], "val/perplexity": math.exp(LOSSES[step])}
        found += [
            TruthRow(metric=m, step=step, value=v, time_ms=BEGAN + later + step) for m, v in values.items()
        ]
    return found


def start(attempt: int, pod: str, world: int) -> TruthStart:
    """Return the start of a process of a rank, which torchrun did not count as a restart."""
    return TruthStart(
        attempt=f"{attempt}",
        time_ms=BEGAN - 10 + 500 * attempt,
        pod=pod,
        restart=0,
        max_restarts=3,
        world=world,
    )


@pytest.fixture
def scaled_down(tmp_path: Path) -> Callable[..., dict[str, Check]]:
    """Return a function that judges a training that continued with a world of 1 after a world of 2."""

    numbers = count()

    def judged(
        logged: int = KILLED,
        absent: Callable[[TruthRow], bool] | None = None,
        seen: dict[tuple[str, int], float] | None = None,
        before: dict[tuple[str, int], float] | None = None,
    ) -> dict[str, Check]:
        """`logged` is the first step that rank 1 did not log. `absent` selects its rows that are missing from
        the run. `seen` contains different values in the run. `before` contains the values that an earlier
        process of rank 1 had logged.
        """
        job = bundles.healthy()
        assert job.manifest is not None
        assert job.manifest.launch is not None
        assert job.manifest.expected is not None
        launch = job.manifest.launch.model_copy(update={"training": True, "max_nodes": 4})
        size = {"num_nodes": 1, "ranks": 1, "most_ranks": 2}
        expected = job.manifest.expected.model_copy(update=size)
        job.manifest = job.manifest.model_copy(update={"launch": launch, "expected": expected})
        pods = [job.pod_name(index) for index in range(2)]
        first = truth_rows(0, 2, range(KILLED))
        again = truth_rows(0, 1, range(CHECKPOINT, STEPS), later=1000)
        job.retell(0, again)
        job.truth[0] = [start(0, pods[0], 2), *first, start(1, pods[0], 1), *job.truth[0]]
        gone = truth_rows(1, 2, range(logged))
        job.truth[1] = [start(0, pods[1], 2), *gone]
        if before:
            rows_ = [TruthRow(metric=m, step=s, value=v, time_ms=BEGAN - 5) for (m, s), v in before.items()]
            job.truth[1] = [start(-1, pods[1], 2), *rows_, *job.truth[1]]
        job.refresh()
        latest = {(row.metric, row.step): row for row in [*first, *again]}
        job.points = [bundles.point(job, 0, row) for row in latest.values()]
        kept = [row for row in gone if not (absent and absent(row))]
        other = [r.model_copy(update={"value": (seen or {}).get((r.metric, r.step), r.value)}) for r in kept]
        job.points += [bundles.point(job, 1, row) for row in other]
        bundle = job.write(tmp_path / f"bundle{next(numbers)}")
        (bundle.path / AUDIT).write_text(json.dumps(audit()))
        return {check.name: check for check in judge(bundle).checks}

    return judged


def _results(found: dict[str, Check], *names: str) -> dict[str, str]:
    return {name: found[name].result for name in names}


@pytest.mark.parametrize("arrived", [True, False])
def test_steps_that_smaller_world_made_again_are_not_owed(scaled_down: Any, arrived: bool) -> None:
    """Contract: a deleted rank's rows after the last checkpoint may be in the run or missing from it."""
    found = scaled_down(absent=None if arrived else lambda row: row.step >= CHECKPOINT)
    assert _results(found, *POINTS) == dict.fromkeys(POINTS, "PASS"), found


def test_a_row_from_before_the_checkpoint_is_owed(scaled_down: Any) -> None:
    found = scaled_down(absent=lambda row: row.step == CHECKPOINT - 1 and "loss" in row.metric)
    assert (found["no-lost-points"].cause, found["no-lost-points"].ranks) == ("unification.lost_points", [1])


def test_a_deleted_rank_that_missed_checkpointed_steps_is_named(scaled_down: Any) -> None:
    """Contract: if a rank's record has no end, the steps of rank 0 show which steps the rank had to log."""
    found = scaled_down(logged=CHECKPOINT - 1)
    assert (found["training-data"].cause, found["training-data"].ranks) == ("training.data_missed", [1])


def test_a_smaller_world_is_no_job_restart(scaled_down: Any) -> None:
    """Contract: the verdict names the new world size, and values that are logged again do not collide."""
    found = scaled_down()
    assert found["restarts"].result == "PASS"
    assert "formed a world of 1 rank" in found["restarts"].explanation
    assert found["collisions"].result == found["training-resume"].result == "PASS"


def test_a_superseded_step_may_keep_its_earlier_value(scaled_down: Any) -> None:
    """Contract: this applies only if the deleted rank ran the step twice. Otherwise, the run must contain the
    value that it logged."""
    metric = "rank1/train/loss"
    assert scaled_down(seen={(metric, 3): 7.5})["values"].cause == "unification.wrong_value"
    assert scaled_down(seen={(metric, 3): 7.5}, before={(metric, 3): 7.5})["values"].result == "PASS"
    found = scaled_down(seen={(metric, 1): 7.5}, before={(metric, 1): 7.5})
    assert found["values"].cause == "unification.wrong_value", "the world after it did not make step 1 again"
