"""The judges of a training job: a correct training passes, and each defect has its own cause."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import bundles
import pytest
from training_audits import BATCH, BEGAN, LOSSES, RANKS, SEED, SEQUENCES, STEPS, audit

from harness.evidence.schema.bundle import Check
from harness.evidence.schema.ground_truth import TruthRow, TruthStart
from harness.evidence.schema.training import AUDIT, RESUMED_FROM, UPLOAD
from harness.judge import judge
from harness.judge.training.data_order import sums
from harness.workers.training import data_order

"""The step at which a smaller world resumes, and the first step that the larger world did not run."""
Change = Callable[[dict[str, Any]], None]


def mine(step: int, rank: int, seed: int = SEED) -> list[int]:
    """Return the sequences that a rank uses in a step."""
    epoch, place = divmod(step, data_order.steps(SEQUENCES, BATCH))
    chosen = data_order.batch_of(seed, epoch, SEQUENCES, place * BATCH, BATCH)
    return list(data_order.share(chosen, rank, RANKS))


def rows(
    rank: int, take: Callable[[int], list[int]], losses: dict[int, float], steps: range = range(STEPS)
) -> list[TruthRow]:
    """Return the rows that a rank logs in these steps."""
    found = []
    for step in steps:
        values: dict[str, float] = {f"rank{rank}/train/loss": 1.0 + step}
        names = ("count", "sum", "squares")
        values |= {f"rank{rank}/data/{n}": v for n, v in zip(names, sums(take(step)), strict=True)}
        if rank == 0:
            values |= {"train/loss": 1.0 + step, "train/ranks": float(RANKS)}
            if step in losses:
                values |= {"val/loss": losses[step], "val/perplexity": math.exp(losses[step])}
        found += [TruthRow(metric=m, step=step, value=v, time_ms=BEGAN + step) for m, v in values.items()]
    return found


@pytest.fixture
def checked(tmp_path: Path) -> Callable[..., dict[str, Check]]:
    """Return a function that judges a training, given its ranks' rows, its audit and other fields of its
    launch."""
    numbers = count()

    def checked_(
        truth: dict[int, list[Any]] | None = None,
        report: dict[str, Any] | None = None,
        beside: dict[str, Any] | None = None,
        **launch: Any,
    ) -> dict[str, Check]:
        job = bundles.healthy()
        assert job.manifest is not None
        assert job.manifest.launch is not None
        more = job.manifest.launch.model_copy(update={"training": True, **launch})
        job.manifest = job.manifest.model_copy(update={"launch": more})
        for rank in range(RANKS):
            own = (truth or {}).get(rank) or rows(rank, lambda step, rank=rank: mine(step, rank), LOSSES)
            starts = [at for at, line in enumerate(own) if isinstance(line, TruthStart)]
            job.retell(rank, list(own[max(starts, default=-1) + 1 :]))
            if starts:
                job.truth[rank] = [*own, job.truth[rank][-1]]
        job.refresh()
        bundle = job.write(tmp_path / f"bundle{next(numbers)}")
        if report is not None:
            (bundle.path / AUDIT).write_text(json.dumps(report))
        for name, document in (beside or {}).items():
            (bundle.path / name).write_text(json.dumps(document))
        return {check.name: check for check in judge(bundle).checks}

    return checked_


def test_a_training_that_is_right_passes(checked: Any) -> None:
    """Contract: every check passes, and its explanation states what was proved."""
    found = checked(report=audit())
    training = {name: check for name, check in found.items() if name.startswith("training-")}
    assert {check.result for check in training.values()} == {"PASS"}, training
    assert "the weights w2" in training["training-checkpoints"].explanation
    assert "the lowest of 2 validation losses" in training["training-best"].explanation
    assert "each of 10 sequences was used exactly once in 2 whole epochs" in (
        training["training-data"].explanation.lower()
    )


@pytest.mark.parametrize("report", [None, {"error": "its pod has failed"}])
def test_without_an_audit_nothing_is_proved(checked: Any, report: dict[str, Any] | None) -> None:
    found = checked(report=report)
    names = ("training-checkpoints", "training-best", "training-curve", "training-data")
    assert {found[name].result for name in names} == {"UNKNOWN"}


def _edit(path: str, value: Any) -> Change:
    """Return a function that sets a field of the audit, whose path has the form "a.b.0.c"."""

    def change(report: dict[str, Any]) -> None:
        *way, last = path.split(".")
        at: Any = report
        for word in way:
            at = at[int(word)] if isinstance(at, list) else at[word]
        at[int(last) if isinstance(at, list) else last] = value

    return change


@pytest.mark.parametrize(
    ("change", "name", "cause"),
    [
        (_edit("checkpoints", []), "checkpoints", "checkpoint_missing"),
        (_edit("checkpoints.0.whole", False), "checkpoints", "checkpoint_torn"),
        (_edit("checkpoints.1.weights", None), "checkpoints", "checkpoint_torn"),
        (_edit("checkpoints.0.not_finite", ["head.weight"]), "checkpoints", "weights_not_finite"),
        (_edit("unchanged", ["token.weight"]), "checkpoints", "parameter_frozen"),
        (_edit("best", None), "best", "best_is_stale"),
        (_edit("best.there", False), "best", "best_is_stale"),
        (_edit("best.told", {"val/loss": 1.5}), "best", "best_is_stale"),
        (_edit("best.told", {}), "best", "best_is_stale"),
        (_edit("best.loss", 1.3 + 1e-6), "best", "evaluation_wrong"),
        (_edit("best.tokens", 98), "best", "evaluation_wrong"),
        (_edit("best.loss", math.nan), "best", "evaluation_wrong"),
        (_edit("checkpoints.0.losses", {"val/loss": 1.4}), "best", "evaluation_wrong"),
        (_edit("checkpoints.1.losses", {"val/loss": 1.2}), "best", "evaluation_wrong"),
        (_edit("entropy.val", 1.4), "curve", "loss_below_entropy"),
    ],
)
def test_what_the_audit_shows_is_named(checked: Any, change: Change, name: str, cause: str) -> None:
    report = audit()
    change(report)
    found = checked(report=report)[f"training-{name}"]
    assert (found.result, found.cause) == ("FAIL", f"training.{cause}"), found.explanation


def test_a_best_that_cannot_be_evaluated_again_proves_nothing(checked: Any) -> None:
    report = audit()
    report["best"] |= {"loss": None, "tokens": None, "why": "OSError: no val.jsonl"}
    assert checked(report=report)["training-best"].result == "UNKNOWN"


def test_the_reach_that_was_asked_for(checked: Any) -> None:
    """Contract: 1.3 is 4 % above 1.25. Without a known entropy, the loss that was reached proves nothing."""
    assert checked(report=audit(), reach=0.05)["training-curve"].result == "PASS"
    assert checked(report=audit(), reach=0.03)["training-curve"].cause == "training.loss_not_reached"
    other = {**audit(), "options": {"model_local_dir": "/models/x"}}
    assert checked(report=other, reach=0.05)["training-curve"].result == "UNKNOWN"
    assert checked(report=other)["training-curve"].result == "PASS"


def test_the_same_as_another_training(checked: Any) -> None:
    same = {"same_as": "other", "same_as_weights": "w2"}
    assert checked(report=audit(), **same)["training-checkpoints"].result == "PASS"
    found = checked(report=audit(), **{**same, "same_as_weights": "w9"})["training-checkpoints"]
    assert found.cause == "training.differs_from"


@pytest.mark.parametrize(
    ("losses", "cause"), [({5: 1.3}, "epoch_not_evaluated"), ({}, "epoch_not_evaluated")]
)
def test_an_epoch_that_was_not_evaluated(checked: Any, losses: dict[int, float], cause: str) -> None:
    truth = {0: rows(0, lambda step: mine(step, 0), losses)}
    assert checked(truth, audit())["training-best"].cause == f"training.{cause}"


def test_a_perplexity_of_something_else(checked: Any) -> None:
    own = [
        row.model_copy(update={"value": 4.0}) if row.metric == "val/perplexity" else row
        for row in rows(0, lambda step: mine(step, 0), LOSSES)
    ]
    assert checked({0: own}, audit())["training-best"].cause == "training.perplexity_wrong"


@pytest.mark.parametrize(
    ("take", "cause", "ranks"),
    [
        (lambda step: mine(step, 1, seed=8), "rank_with_other_seed", [1]),
        (lambda step: mine(2 if step == 4 else step, 1), "data_repeated", [1]),
        (lambda step: mine(step, 1)[: -1 if step == 1 else None], "data_missed", [1]),
        (lambda step: mine(step, 1) + [0] * (step == 1), "data_repeated", [1]),
        (lambda step: mine(step, 0), "rank_with_other_seed", [1]),
        (lambda step: mine(step, 1)[:-1], "data_missed", [1]),
        (lambda step: [*mine(step, 1), 0], "data_repeated", [1]),
    ],
)
def test_data_that_a_rank_must_not_take(checked: Any, take: Any, cause: str, ranks: list[int]) -> None:
    """Contract: the rank is named even if only one step is wrong. With another seed, the number of sequences
    is the same."""
    found = checked({1: rows(1, take, {})}, audit())["training-data"]
    assert (found.cause, found.ranks) == (f"training.{cause}", ranks), found.explanation


PER_EPOCH = data_order.steps(SEQUENCES, BATCH)


@pytest.mark.parametrize(
    ("take", "cause", "says"),
    [
        # pytorch #31771, tacotron2 #241
        (lambda s, r: mine(s % PER_EPOCH, r), "data_repeated", "1 epoch earlier.*set_epoch"),
        # pocket-tts #287, sparse-to-dense.pytorch #19
        (lambda s, r: mine(s if s < 4 else s - 1, r), "data_repeated", "1 step earlier.*resumed"),
        # paiml/entrenar #294
        (lambda s, r: mine(s if s < 4 else s - 4, r), "data_repeated", "4 steps earlier.*resumed"),
        # huggingface/accelerate #2016: after a resume in the second epoch, the order of the first epoch is
        # used.
        (lambda s, r: mine(s if s < 4 else s - PER_EPOCH, r), "data_repeated", "1 epoch earlier"),
        # A loader that skips a batch which was not used.
        (
            lambda s, r: mine(s if s < 4 else min(s + 1, STEPS - 1), r),
            "data_missed",
            "1 step later.*not skip",
        ),
        (lambda s, r: mine(s, 0), "rank_with_other_seed", "of rank 0.*own share"),
        (lambda s, r: mine(s, r, seed=8), "data_repeated", "than those of the seed: "),
    ],
)
def test_the_data_that_was_used_instead_is_named(checked: Any, take: Any, cause: str, says: str) -> None:
    """Contract: if a single mistake of the sampler explains all steps, the explanation describes it."""
    wrong = {
        rank: rows(rank, lambda step, rank=rank: take(step, rank), {} if rank else LOSSES)
        for rank in range(RANKS)
    }
    found = checked(wrong, audit())["training-data"]
    assert found.cause == f"training.{cause}", found.explanation
    assert re.search(says, found.explanation), found.explanation


def test_launch_of_run_that_had_ended_is_explained(checked: Any) -> None:
    """Contract: a launch that ran no step is not a PASS. The explanation names the last checkpoint and what
    to do."""
    other = [TruthRow(metric="other", step=0, value=1.0, time_ms=BEGAN)]
    found = checked({0: other, 1: other}, audit())["training-data"]
    assert found.result == "UNKNOWN"
    assert "No step was logged, and the last checkpoint of run 'train' is from step 6" in found.explanation
    assert "use another --run, or more steps or epochs" in found.explanation


def test_steps_that_nobody_logged(checked: Any) -> None:
    gone = {
        rank: [row for row in rows(rank, lambda s, rank=rank: mine(s, rank), LOSSES) if row.step != 3]
        for rank in range(RANKS)
    }
    found = checked(gone, audit())["training-data"]
    assert (found.cause, found.explanation.count("step 3")) == ("training.data_missed", 1)
    silent = [
        row for row in rows(1, lambda s: mine(s, 1), {}) if "squares" not in row.metric or row.step != 2
    ]
    assert checked({1: silent}, audit())["training-data"].ranks == [1]


def twice(value: float) -> list[Any]:
    """Return two attempts of rank 1, the second of which repeats step 2 with this loss."""
    whole = rows(1, lambda step: mine(step, 1), {})
    first = [row for row in whole if row.step < 3]
    again = [
        row.model_copy(update={"value": value, "time_ms": BEGAN + 100})
        if (row.metric, row.step) == ("rank1/train/loss", 2)
        else row.model_copy(update={"time_ms": BEGAN + 100 + row.step})
        for row in whole
        if row.step >= 2
    ]
    starts = [
        TruthStart(attempt=f"{n}", time_ms=BEGAN - 10 + 50 * n, pod="p", restart=n, max_restarts=1)
        for n in range(2)
    ]
    return [starts[0], *first, starts[1], *again]


def test_step_that_is_made_again_is_same_step(checked: Any) -> None:
    """Contract: a repeated step must be equal to the last bit. Otherwise, the verdict names the step, the
    rank and both values."""
    same = checked({1: twice(3.0)}, audit())["training-resume"]
    assert (same.result, same.explanation[:1]) == ("PASS", "4"), same.explanation
    found = checked({1: twice(math.nextafter(3.0, 4.0))}, audit())["training-resume"]
    assert (found.cause, found.ranks) == ("training.resume_differs", [1])
    assert "rank1/train/loss at step 2: 3.0 then 3.0000000000000004" in found.explanation
    on_gpus = {**audit(), "options": {"device": "cuda"}}
    assert checked({1: twice(3.5)}, on_gpus)["training-resume"].result == "PASS"


# The StatefulSet was scaled: a deleted rank need not have logged the steps that the smaller world repeated.


URL = "s3://runs/llama"


def transfer(**changed: Any) -> dict[str, Any]:
    """Return the upload's report for the audited run."""
    each = [{"name": f"epoch-{e}", "step": 3 * e, "files": 4, "bytes": 100, "sent": 100} for e in (1, 2)]
    whole = {"version": 1, "url": URL, "run": "train", "checkpoints": each, "torn": [], "best": "epoch-2"}
    return whole | changed


def test_an_upload_that_has_the_run_passes(checked: Any) -> None:
    """Contract: the check names the verified checkpoints and their location. Only launches with --upload have
    this check."""
    found = checked(report=audit(), beside={UPLOAD: transfer()}, upload=URL)["training-upload"]
    assert found.result == "PASS"
    assert (
        f"2 checkpoints at {URL}, read back and equal to the manifests: epoch-1, epoch-2" in found.explanation
    )
    assert "200 bytes, 200 of them sent now" in found.explanation
    assert "training-upload" not in checked(report=audit())


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"error": "there is no bucket"}, "there is no bucket"),
        ({"checkpoints": transfer()["checkpoints"][:1]}, "epoch-2 was not sent"),
        ({"torn": ["epoch-3: model is missing"]}, "epoch-3: model is missing, and was not sent"),
        ({"best": None}, "`best` is epoch-2 on the volume, but None was sent"),
        ({"url": "s3://other/b"}, "'train' was sent to s3://other/b"),
        ({"run": "another"}, "'another' was sent"),
    ],
)
def test_a_failed_upload_is_its_own_cause(checked: Any, changed: dict[str, Any], says: str) -> None:
    """Contract: a failed upload is not a PASS, but the checks of the training itself still pass."""
    found = checked(report=audit(), beside={UPLOAD: transfer(**changed)}, upload=URL)
    upload = found.pop("training-upload")
    assert (upload.result, upload.cause) == ("FAIL", "training.upload_failed")
    assert says in upload.explanation
    assert "The other checks of the training are still valid" in upload.explanation
    assert {check.result for name, check in found.items() if name.startswith("training-")} == {"PASS"}


def test_upload_that_nothing_is_known_of_is_no_pass(checked: Any) -> None:
    assert checked(report=audit(), upload=URL)["training-upload"].result == "UNKNOWN"
    without = checked(beside={UPLOAD: transfer()}, upload=URL)["training-upload"]
    assert without.result == "UNKNOWN"


@pytest.mark.parametrize(
    ("brought", "result", "cause"),
    [
        (transfer(checkpoints=[{"name": "epoch-1", "step": 3, "files": 4, "bytes": 1}]), "PASS", None),
        (transfer(), "FAIL", "training.resume_from_failed"),
        (None, "UNKNOWN", None),
        ({"error": "it was cut"}, "UNKNOWN", None),
    ],
)
def test_resumed_training_must_continue_the_restored_run(
    checked: Any, brought: dict[str, Any] | None, result: str, cause: str | None
) -> None:
    """Contract: a training that starts from the beginning, although a run was restored, is not a PASS."""
    truth = {
        rank: rows(rank, lambda step, rank=rank: mine(step, rank), LOSSES, range(3, STEPS))
        for rank in range(RANKS)
    }
    beside = {} if brought is None else {RESUMED_FROM: brought}
    found = checked(truth, audit(), beside, resume_from=URL)["training-resume"]
    assert (found.result, found.cause) == (result, cause)


# The validation texts changed: losses over different texts are not compared.


def changed_texts(since: int) -> dict[str, Any]:
    """Return the audit of a training whose validation texts changed after step 3."""
    said = audit()
    said["checkpoints"][0]["losses"] = {"val/texts": 11, "val/since": 0}
    said["checkpoints"][1]["losses"] = {"val/texts": 22, "val/since": since}
    said["best"]["told"] |= {"val/texts": 22, "val/since": since}
    said["best"]["texts"] = 22
    return said


def test_lower_loss_on_other_validation_texts_is_not_the_lowest(checked: Any) -> None:
    """Contract: losses on texts that are no longer used do not make `best` stale, and do not count as below
    the entropy."""
    truth = {0: rows(0, lambda step: mine(step, 0), {2: 0.7, 5: 1.3})}
    found = checked(truth, changed_texts(since=3))
    assert found["training-best"].result == "PASS", found["training-best"].explanation
    assert "since step 3" in found["training-best"].explanation
    assert found["training-curve"].result == "PASS", found["training-curve"].explanation
    stale = checked(truth, changed_texts(since=2))["training-best"]
    assert stale.cause == "training.best_is_stale", stale.explanation


def test_best_of_validation_texts_that_are_gone_proves_nothing(checked: Any) -> None:
    """Contract: a different loss on other texts is not a wrong evaluation."""
    said = audit()
    said["best"] |= {"texts": 22, "loss": 9.0, "tokens": 50}
    said["best"]["told"] |= {"val/texts": 11}
    found = checked(report=said)["training-best"]
    assert found.result == "UNKNOWN", found.explanation
    assert "other validation texts" in found.explanation


def test_repeated_evaluation_of_other_validation_texts_may_differ(checked: Any) -> None:
    """Contract: only validation losses may differ, and only if the texts changed during this launch."""
    again = [
        row.model_copy(update={"value": row.value * 2, "time_ms": BEGAN + 100})
        if row.metric.startswith("val/")
        else row.model_copy(update={"time_ms": BEGAN + 100 + row.step})
        for row in rows(0, lambda step: mine(step, 0), LOSSES)
    ]
    starts = [
        TruthStart(attempt=f"{n}", time_ms=BEGAN - 10 + 50 * n, pod="p", restart=n, max_restarts=1)
        for n in range(2)
    ]
    own = [starts[0], *rows(0, lambda step: mine(step, 0), LOSSES), starts[1], *again]
    assert checked({0: own}, audit())["training-resume"].cause == "training.resume_differs"
    found = checked({0: own}, changed_texts(since=1))["training-resume"]
    assert found.result == "PASS", found.explanation
    assert "validation texts changed" in found.explanation
