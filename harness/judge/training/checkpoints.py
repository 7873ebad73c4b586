"""Judge a training job's checkpoints and validation losses, using the tracker and an audit of the disk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from harness.core.causes import CauseId
from harness.evidence.schema.bundle import Launch
from harness.evidence.schema.training import AUDIT, BestCheckpoint, TrainingAudit
from harness.judge.context import Facts
from harness.judge.finding import Finding, counted, not_passed, passed, unknown
from harness.judge.points.series import NONE, Series
from harness.workers.training import data_order

VAL_LOSS, VAL_PERPLEXITY = "val/loss", "val/perplexity"
VAL_TEXTS, VAL_SINCE = "val/texts", "val/since"
"""Keys among a checkpoint's losses: the fingerprint of the validation texts, and the first step at which the
run used them."""
EXACT = 1e-9
"""Maximum difference, in nats, between two evaluations on the same kind of machine. It allows for a different
order of summation."""
OTHER_MACHINE = 1e-3
"""Maximum difference, in nats, between a validation loss that was computed on a GPU and the same loss
computed again on a CPU."""
BELOW = 0.01
"""Maximum fraction by which a loss can be below the known entropy of the data by chance."""
OTHER_TOKENS = ("model", "model_local_dir", "tokenizer_local_dir")
"""Options that select a tokenizer whose tokens are not single bytes."""


class Problem(NamedTuple):
    """A problem with its cause, a one-sentence description and the affected items."""

    cause: CauseId
    head: str
    details: list[str]


def checkpoints(facts: Facts) -> Finding:
    """Run the `training-checkpoints` check: all checkpoints are complete.

    Their weights must be finite, and training must have changed them.
    """
    audit, launch = _audit(facts), facts.case.launch
    if isinstance(audit, str):
        return unknown("training-checkpoints", audit)
    for cause, head, details in _problems(audit, launch):
        return not_passed("training-checkpoints", cause, head, details=details, evidence=[AUDIT])
    last, incomplete = audit.checkpoints[-1], len(audit.leftovers)
    parts = [f"{counted(len(audit.checkpoints), 'checkpoint')} complete and loaded"]
    parts += ["every weight was trained"] if audit.unchanged is not None else []
    parts += [f"the last, of step {last.step}, has the weights {last.weights}"]
    parts += [f"which are those of {launch.same_as}"] if launch.same_as else []
    parts += [f"{counted(incomplete, 'half-written folder')} that no resume reads"] if incomplete else []
    return passed("training-checkpoints", ", ".join(parts), [AUDIT])


def _problems(audit: TrainingAudit, launch: Launch) -> Iterator[Problem]:
    """Yield the problems with the checkpoints, such as incomplete ones or weights that are not finite."""
    saved = audit.checkpoints
    if not saved:
        text = f"the training wrote no checkpoint of run {audit.run!r}"
        yield Problem("training.checkpoint_missing", text, [])
        return
    if unusable := [one.why or one.name for one in saved if not one.whole or one.weights is None]:
        text = f"{len(unusable)} of {counted(len(saved), 'checkpoint')} cannot be used"
        yield Problem("training.checkpoint_torn", text, unusable)
    if not_finite := [f"{weight} in {one.name}" for one in saved for weight in one.not_finite]:
        yield Problem(
            "training.weights_not_finite", "a checkpoint holds weights that are not finite", not_finite
        )
    if audit.unchanged:
        text = f"from {saved[0].name} to {saved[-1].name}, training did not change these parameters"
        yield Problem("training.parameter_frozen", text, audit.unchanged)
    if launch.same_as and saved[-1].weights != launch.same_as_weights:
        text = f"the weights of {saved[-1].name} differ from those of {launch.same_as}"
        yield Problem(
            "training.differs_from", text, [f"{saved[-1].weights} instead of {launch.same_as_weights}"]
        )


def best(facts: Facts) -> Finding:
    """Run the `training-best` check: `best` has the lowest logged validation loss.

    That loss must be correct.
    """
    audit = _audit(facts)
    if isinstance(audit, str):
        return unknown("training-best", audit)
    logged = _of_rank_0(facts, VAL_LOSS)
    losses, since = _on_current_texts(audit, logged)
    problems = (*_curves(facts, audit, logged), *_other_than_logged(audit, logged), *_stale(audit, losses))
    for cause, head, details in problems:
        return not_passed("training-best", cause, head, details=details, evidence=[AUDIT])
    audited = audit.best
    if audited is not None and _has_other_texts(audited):
        text = f"`best` is {audited.target}, which was measured on other validation texts than those that"
        return unknown("training-best", f"{text} exist now, so its loss cannot be computed again")
    if audited is None or audited.loss is None:
        return unknown("training-best", f"`best` could not be evaluated again: {audited and audited.why}")
    has_several = len(losses) > 1
    which = f"the lowest of {len(losses)} validation losses" if has_several else "the only validation loss"
    which += f" since step {since}, when the validation texts changed" if len(logged) > len(losses) else ""
    text = f"`best` is {audited.target}, with {which}: {audited.loss:.9f} nats over {audited.tokens} tokens"
    return passed("training-best", f"{text}; evaluated again, it has the same loss", [AUDIT])


def _curves(facts: Facts, audit: TrainingAudit, losses: Series) -> Iterator[Problem]:
    """Yield problems with logged values, namely epochs without a validation loss and wrong perplexities."""
    if missing := _not_evaluated(audit, losses, _of_rank_0(facts, "train/loss")):
        text = f"no validation loss was logged at the end of {counted(len(missing), 'epoch')}"
        yield Problem("training.epoch_not_evaluated", text, [f"step {step}" for step in missing])
    perplexities = _of_rank_0(facts, VAL_PERPLEXITY)
    if wrong_steps := [step for step, loss in losses.items() if not _agree(perplexities.get(step), loss)]:
        details = [f"step {s}: loss {losses[s]!r}, perplexity {perplexities.get(s)!r}" for s in wrong_steps]
        yield Problem("training.perplexity_wrong", "a perplexity is not exp(loss)", details)


def _other_than_logged(audit: TrainingAudit, losses: Series) -> Iterator[Problem]:
    """Yield a problem if a checkpoint's validation loss differs from the loss logged at the same step.

    The logged losses are compared with the checkpoints, because only the loss of `best` is evaluated again.
    """
    differences = [
        f"{one.name} has {loss!r}, but step {one.step - 1} was logged with {losses[one.step - 1]!r}"
        for one in audit.checkpoints
        if (loss := one.losses.get(VAL_LOSS)) is not None and losses.get(one.step - 1, loss) != loss
    ]
    if differences:
        text = "the validation loss in a checkpoint differs from the logged one"
        yield Problem("training.evaluation_wrong", text, differences)


def _stale(audit: TrainingAudit, losses: Mapping[int, float]) -> Iterator[Problem]:
    """Yield problems with the link `best`: missing, not the best checkpoint, or with a wrong loss."""
    audited = audit.best
    if audited is None:
        yield Problem("training.best_is_stale", "the training left no `best`", [])
        return
    recorded, lowest = audited.told.get(VAL_LOSS), min(losses.values(), default=math.inf)
    if not audited.there or recorded is None or recorded > lowest:
        step = min((step for step, loss in losses.items() if loss == lowest), default=None)
        target_text = (
            f"leads to {audited.target}, whose loss is {recorded!r}" if audited.there else "leads to nothing"
        )
        text = f"`best` {target_text}; the lowest loss in the tracker is {lowest!r}, after step {step}"
        yield Problem("training.best_is_stale", text, [])
    if audited.loss is None or recorded is None or _has_other_texts(audited):
        return
    limit = EXACT if audit.options.get("device") != "cuda" else OTHER_MACHINE
    tokens = audited.told.get("val/tokens", audited.tokens)
    if not abs(audited.loss - recorded) <= limit or tokens != audited.tokens:
        text = (
            f"{audited.target} has the validation loss {recorded!r} over {tokens:.0f} tokens; evaluated "
            f"again, it has {audited.loss!r} over {audited.tokens}"
        )
        yield Problem("training.evaluation_wrong", text, [])


def _has_other_texts(best: BestCheckpoint) -> bool:
    """Return whether `best` was measured on validation texts other than those that the audit read."""
    recorded = best.told.get(VAL_TEXTS)
    return recorded is not None and best.texts is not None and recorded != best.texts


def _on_current_texts(audit: TrainingAudit, losses: Mapping[int, float]) -> tuple[Mapping[int, float], int]:
    """Return (the losses that were logged since the validation texts last changed, the step of this change).

    Losses over different texts are not comparable, because even a worse model has a lower loss on easier
    texts.
    """
    since = texts_changed(audit)
    return {step: loss for step, loss in losses.items() if step >= since}, since


def texts_changed(audit: TrainingAudit) -> int:
    """Return the step after which the validation texts last changed, or 0 if they never changed.

    The steps in a run are counted from 0, so the step with the returned number was the first with the new
    texts.
    """
    return max((int(one.losses.get(VAL_SINCE, 0)) for one in audit.checkpoints), default=0)


def curve(facts: Facts) -> Finding:
    """Run the `training-curve` check: the validation loss is plausible and low enough.

    It must not be below the data's entropy, and it must reach the --reach target.
    """
    audit = _audit(facts)
    logged, reach = _of_rank_0(facts, VAL_LOSS), facts.case.launch.reach
    losses = logged if isinstance(audit, str) else _on_current_texts(audit, logged)[0]
    if isinstance(audit, str) or not losses:
        return unknown("training-curve", audit if isinstance(audit, str) else "no validation loss was logged")
    lowest, entropy = min(losses.values()), audit.entropy
    if entropy is None or any(audit.options.get(name) for name in OTHER_TOKENS):
        text = f"the lowest validation loss is {lowest:.4f} nats; the entropy of these tokens is not known"
        if reach is not None:
            return unknown("training-curve", f"{text}, so --reach cannot be checked")
        return passed("training-curve", text, [AUDIT])
    excess = f"{(lowest / entropy.val - 1):.1%} above the entropy of the texts, {entropy.val:.4f}"
    text = f"the lowest validation loss is {lowest:.4f} nats, {excess}"
    if lowest < entropy.val * (1 - BELOW):
        reasons = ["the model sees the tokens that it predicts, or tokens were left out"]
        return not_passed(
            "training-curve", "training.loss_below_entropy", text, why=reasons, evidence=[AUDIT]
        )
    if reach is not None and lowest > entropy.val * (1 + reach):
        reasons = [f"--reach allows at most {reach:.1%}"]
        return not_passed("training-curve", "training.loss_not_reached", text, why=reasons, evidence=[AUDIT])
    demand = f"--reach allows at most {reach:.1%}" if reach is not None else "--reach was not given"
    return passed("training-curve", f"{text}; {demand}", [AUDIT])


def _audit(facts: Facts) -> TrainingAudit | str:
    """Return the audit of the training's disk, or a sentence that explains why there is no audit."""
    audit = facts.bundle.training_audit
    if audit is None:
        return "the bundle has no audit of the checkpoints"
    return f"the audit of the checkpoints failed: {audit.error}" if audit.error else audit


def _of_rank_0(facts: Facts, metric: str) -> Series:
    """Return the values logged by rank 0, by step. If a step was logged twice, the later value counts."""
    return facts.truths[0].rows.get(metric, NONE) if facts.truths else NONE


def _not_evaluated(audit: TrainingAudit, losses: Series, steps: Series) -> list[int]:
    """Return the last steps of epochs, and of the launch, at which no validation loss was logged."""
    if not steps or not audit.order:
        return []
    each = data_order.steps(audit.order["sequences"], audit.order["batch"])
    last = max(steps)
    return [step for step in sorted(steps) if ((step + 1) % each == 0 or step == last) and step not in losses]


def _agree(perplexity: float | None, loss: float) -> bool:
    """Return whether the perplexity is the exponential of the loss, within EXACT."""
    expected = math.exp(loss) if loss < 700 else math.inf
    return perplexity is not None and (perplexity == expected or abs(perplexity / expected - 1) <= EXACT)
