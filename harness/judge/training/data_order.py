"""Judge which sequences a training job's ranks used, and whether repeated steps logged the same values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.core.causes import CauseId
from harness.evidence.schema.ground_truth import TruthRow, TruthStart
from harness.evidence.schema.training import AUDIT, RESUMED_FROM, TrainingAudit
from harness.judge.case import names
from harness.judge.context import Facts
from harness.judge.finding import Finding, counted, not_passed, passed, unknown
from harness.judge.points.elastic import RANKS
from harness.judge.points.series import NONE, Series
from harness.judge.training.checkpoints import VAL_LOSS, VAL_PERPLEXITY, texts_changed
from harness.workers.training import data_order

MOSTLY = 0.75
"""Minimum fraction of a rank's steps that deviate from the expected sequences if the rank uses another seed.
The other steps can match by chance."""
LOOKED = 3
"""Number of deviating steps per rank that are compared with the sequences expected for other ranks and for
earlier steps."""
_KINDS = ("rank", "steps", "later")
"""Explanations for wrong sequences, in order of preference. The sequences are those of another rank, of an
earlier step, or of a later step."""
Sums = tuple[float, float, float]
"""The number of sequences that a rank used in a step, the sum of their indexes, and the sum of the indexes'
squares."""


@dataclass(frozen=True)
class Order:
    """The parameters that determine which sequences each rank uses at each step."""

    seed: int
    batch: int
    sequences: int

    @property
    def per_epoch(self) -> int:
        """Return the number of steps in an epoch."""
        return data_order.steps(self.sequences, self.batch)

    def expected(self, step: int, rank: int, world: int) -> Sums:
        """Return the `Sums` for the sequences that a rank must use in a step."""
        epoch, place = divmod(step, self.per_epoch)
        batch = data_order.batch_of(self.seed, epoch, self.sequences, place * self.batch, self.batch)
        return sums(list(data_order.share(batch, rank, world)))


def sums(numbers: list[int]) -> Sums:
    """Return the count of the numbers, their sum, and the sum of their squares."""
    return float(len(numbers)), float(sum(numbers)), float(sum(number * number for number in numbers))


def data(facts: Facts) -> Finding:
    """Run the `training-data` check: all ranks and attempts together used each sequence once per epoch.

    Each epoch's count and sums must match the indexes of all its sequences. Each rank must have used the
    sequences determined by the seed and the step.
    """
    audit = facts.bundle.training_audit
    if audit is None or not {"seed", "batch", "sequences"} <= audit.order.keys():
        return unknown("training-data", "the order of the data is not known: no checkpoint was audited")
    plan = Order(audit.order["seed"], audit.order["batch"], audit.order["sequences"])
    worlds = facts.truths[0].rows.get(RANKS, NONE)
    if not worlds:
        return unknown("training-data", _no_step(audit), ranks=[0])
    first, last = int(min(worlds)), int(max(worlds))
    missing = [step for step in range(first, last + 1) if step not in worlds]
    used = {step: _reported_sums(facts, step, int(world)) for step, world in worlds.items()}
    silent_ranks = {rank for ranks in used.values() for rank, reported in ranks.items() if reported is None}
    if missing or silent_ranks:
        text = (
            f"{names(silent_ranks)} did not report which data was used"
            if silent_ranks
            else "steps are missing"
        )
        details = [f"step {step}" for step in missing]
        return not_passed("training-data", "training.data_missed", text, details=details, ranks=silent_ranks)
    deviates = {
        rank: [
            s
            for s, world in worlds.items()
            if rank < world and used[s][rank] != plan.expected(s, rank, int(world))
        ]
        for rank in range(len(facts.truths))
    }
    deviates = {rank: steps for rank, steps in deviates.items() if steps}
    epochs = [
        e for e in range(first // plan.per_epoch, last // plan.per_epoch + 1) if _whole(plan, e, first, last)
    ]
    wrong_epochs = [
        epoch for epoch in epochs if _total(plan, epoch, used) != sums(list(range(plan.sequences)))
    ]
    if deviates or wrong_epochs:
        return _wrong(facts, plan, used, worlds, deviates, wrong_epochs)
    before = f", from step {first} on, which an earlier launch had reached" if first else ""
    each = (
        f"each of {plan.sequences} sequences was used exactly once in {counted(len(epochs), 'whole epoch')}"
    )
    steps = f"all {counted(last + 1 - first, 'step')} used the data of the seed{before}"
    return passed("training-data", f"{each}, and {steps}" if epochs else steps, [AUDIT])


def _no_step(audit: TrainingAudit) -> str:
    """Return the text for a launch that logged no steps, for example because the run had already ended."""
    if not audit.checkpoints:
        return "no step was logged"
    step = audit.checkpoints[-1].step
    return (
        f"no step was logged, and the last checkpoint of run {audit.run!r} is from step {step}. If "
        "the run had "
        "ended before this launch, use another --run, or more steps or epochs to continue it"
    )


def resume(facts: Facts) -> Finding:
    """Run the `training-resume` check: steps that ran twice logged exactly the same values both times.

    On GPUs, differences are allowed. With --resume-from, the first step must follow the downloaded
    checkpoint's step.
    """
    if (other := _not_resumed(facts)) is not None:
        return other
    cuda = (
        facts.bundle.training_audit is not None
        and facts.bundle.training_audit.options.get("device") == "cuda"
    )
    repeated_count, differs = 0, []
    is_changed = _texts_changed(facts)
    remark = ", except for validation losses, because the validation texts changed" if is_changed else ""
    for rank in range(len(facts.truths)):
        for metric, step, values in _repeated(facts, rank):
            if is_changed and metric in (VAL_LOSS, VAL_PERPLEXITY):
                continue
            repeated_count += 1
            if len(set(map(repr, values))) > 1:
                differs.append((step, rank, f"{metric} at step {step}: {' then '.join(map(repr, values))}"))
    if differs and not cuda:
        step, rank, _ = min(differs)
        text = f"{names({r for _, r, _ in differs})} logged different values when steps ran again"
        details = [detail for *_, detail in sorted(differs)]
        return not_passed(
            "training-resume",
            "training.resume_differs",
            text,
            details=details,
            ranks=[rank],
            evidence=[f"truth/{rank}.jsonl"],
        )
    if differs:
        text = (
            f"{len(differs)} of {repeated_count} values that were logged again differ, which can happen "
            "on GPUs"
        )
        return passed("training-resume", text)
    if not repeated_count:
        return passed("training-resume", "no step ran twice")
    text = f"{repeated_count} values from repeated steps are the same bit for bit{remark}"
    return passed("training-resume", text)


def _texts_changed(facts: Facts) -> bool:
    """Return whether the validation texts changed during this launch, so that repeated losses may differ."""
    audit, steps = facts.bundle.training_audit, facts.truths[0].rows.get(RANKS, NONE)
    since = texts_changed(audit) if audit is not None else 0
    return bool(since and steps and since >= min(steps))


def _not_resumed(facts: Facts) -> Finding | None:
    """Return a finding if --resume-from was given but training did not resume from that run, or None."""
    url, download = facts.case.launch.resume_from, facts.bundle.training_resumed_from
    if url is None:
        return None
    if download is None or download.error or not download.checkpoints:
        return unknown("training-resume", f"the bundle has no record of the download from {url}")
    rows, step = facts.truths[0].rows.get(RANKS, NONE), max(one.step for one in download.checkpoints)
    if rows and min(rows) != step:
        text = f"the run from {url} is at step {step}, but the first step here is {min(rows)}"
        refs = [RESUMED_FROM, "truth/0.jsonl"]
        return not_passed("training-resume", "training.resume_from_failed", text, ranks=[0], evidence=refs)
    return None


def _reported_sums(facts: Facts, step: int, world: int) -> dict[int, Sums | None]:
    """Map each rank to the `Sums` that it reported for a step, or to None if it did not report them."""
    by_rank: dict[int, Sums | None] = {}
    for truth in facts.truths[:world]:
        values = [
            truth.rows.get(f"rank{truth.rank}/data/{statistic}", NONE).get(step)
            for statistic in ("count", "sum", "squares")
        ]
        reported = [value for value in values if value is not None]
        by_rank[truth.rank] = (reported[0], reported[1], reported[2]) if len(reported) == 3 else None
    return by_rank


def _whole(plan: Order, epoch: int, first: int, last: int) -> bool:
    return first <= epoch * plan.per_epoch and (epoch + 1) * plan.per_epoch - 1 <= last


def _total(plan: Order, epoch: int, used: dict[int, dict[int, Sums | None]]) -> Sums:
    """Return the `Sums` for all sequences that the ranks together used in an epoch."""
    steps = range(epoch * plan.per_epoch, (epoch + 1) * plan.per_epoch)
    parts = [reported for step in steps for reported in used[step].values() if reported is not None]
    return sum(p[0] for p in parts), sum(p[1] for p in parts), sum(p[2] for p in parts)


def _wrong(
    facts: Facts,
    plan: Order,
    used: dict[int, dict[int, Sums | None]],
    worlds: Series,
    deviates: dict[int, list[int]],
    wrong_epochs: list[int],
) -> Finding:
    """Return the finding for ranks that used the wrong sequences."""
    first = min(worlds)
    always_wrong = [
        rank
        for rank, steps in deviates.items()
        if len(steps) >= MOSTLY * sum(rank < world for world in worlds.values())
        and min(steps) <= first + 1
        # A rank with a different seed uses as many sequences as expected, unlike a rank that drops some.
        and all(_as_many(used[s][rank], plan.expected(s, rank, int(worlds[s]))) for s in steps)
    ]
    is_repeated = any(
        reported == plan.expected(earlier, rank, int(worlds[earlier]))
        for rank, steps in deviates.items()
        for step in steps[:LOOKED]
        if (reported := used[step][rank]) is not None and reported[0]
        for earlier in worlds
        if earlier < step and rank < worlds[earlier]
    )
    ranks = sorted(deviates) or list(facts.case.ranks)
    details = [
        f"rank {rank}: {counted(len(steps), 'step')}, from step {steps[0]} on"
        for rank, steps in deviates.items()
    ]
    cause: CauseId
    if always_wrong and len(always_wrong) < facts.case.expected.ranks and len(always_wrong) == len(deviates):
        cause, ranks = "training.rank_with_other_seed", always_wrong
        text = f"{names(always_wrong)} used sequences other than those of the seed, from the start"
    else:
        used_count = sum(_total(plan, epoch, used)[0] for epoch in wrong_epochs)
        are_missing = (
            bool(wrong_epochs) and used_count < len(wrong_epochs) * plan.sequences and not is_repeated
        )
        cause = "training.data_missed" if are_missing else "training.data_repeated"
        text = f"{names(ranks)} used sequences other than those of the seed"
    details += [
        f"epoch {epoch}: {_total(plan, epoch, used)[0]:.0f} sequences were used, but not each of the "
        f"{plan.sequences} exactly once"
        for epoch in wrong_epochs
    ]
    refs = [f"truth/{rank}.jsonl" for rank in ranks]
    reasons = _instead(plan, used, worlds, deviates)
    return not_passed("training-data", cause, text, details=details, why=reasons, ranks=ranks, evidence=refs)


def _instead(
    plan: Order, used: dict[int, dict[int, Sums | None]], worlds: Series, deviates: dict[int, list[int]]
) -> list[str]:
    """Return a one-item list that names the rank or the step whose sequences were used instead, or [].

    The sentence is returned only if it holds for the first LOOKED deviating steps of every rank.
    """
    candidates: set[tuple[str, int]] | None = None
    for rank, step in [(rank, step) for rank, steps in deviates.items() for step in steps[:LOOKED]]:
        reported, world = used[step][rank], int(worlds[step])
        if reported is None or not reported[0]:
            continue
        of_ranks = {
            ("rank", r) for r in range(world) if r != rank and reported == plan.expected(step, r, world)
        }
        earlier = {
            ("steps", step - s)
            for s in worlds
            if s < step and rank < worlds[s] and reported == plan.expected(s, rank, int(worlds[s]))
        }
        later = {
            ("later", ahead)
            for ahead in range(1, plan.per_epoch + 1)
            if reported == plan.expected(step + ahead, rank, world)
        }
        own = of_ranks | earlier | later
        candidates = own if candidates is None else candidates & own
    if not candidates:
        return []
    kind, number = min(candidates, key=lambda each: (_KINDS.index(each[0]), each[1]))
    if kind == "later":
        text = f"these are the sequences of {counted(number, 'step')} later"
        return [f"{text}: a resumed training job must not skip data that it has not used"]
    if kind == "rank":
        return [f"these are the sequences of rank {number}: give each rank its own share of each batch"]
    epochs, remainder = divmod(number, plan.per_epoch)
    if remainder:
        text = f"these are the sequences of {counted(number, 'step')} earlier"
        return [f"{text}: a resumed training job must skip the data that it has already used"]
    text = f"these are the sequences of the same step, {counted(epochs, 'epoch')} earlier"
    return [f"{text}: pass the epoch to the sampler (DistributedSampler.set_epoch)"]


def _as_many(reported: Sums | None, expected: Sums) -> bool:
    return reported is not None and reported[0] == expected[0]


def _repeated(facts: Facts, rank: int) -> Iterator[tuple[str, int, list[float]]]:
    """Yield (metric, step, values) for points that several attempts logged in worlds of the same size."""
    attempts: list[dict[tuple[str, int], float]] = [{}]
    sizes: list[int | None] = [None]
    for _, line in facts.bundle.truth(rank):
        if isinstance(line, TruthStart):
            attempts.append({})
            sizes.append(line.world)
        elif isinstance(line, TruthRow):
            attempts[-1][line.metric, line.step] = line.value
    rows: dict[tuple[str, int], list[float]] = {}
    worlds: dict[tuple[str, int], set[int | None]] = {}
    for attempt, size in zip(attempts, sizes, strict=True):
        for key, value in attempt.items():
            rows.setdefault(key, []).append(value)
            worlds.setdefault(key, set()).add(size)
    for (metric, step), values in rows.items():
        if len(values) > 1 and len(worlds[metric, step]) == 1:
            yield metric, step, values
