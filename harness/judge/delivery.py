"""Explain what became of points that are not in the run, as far as the ranks' own clients tell."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from harness.evidence.schema import TruthClient
from harness.judge.case import Case, names
from harness.judge.points import Comparison, Recorded, same
from harness.judge.truth import Truth
from harness.workers.client_rules import sent_name

UNSENT, ACKNOWLEDGED, NEVER, UNTOLD, ASTRAY = "unsent", "acknowledged", "never", "untold", "astray"
_STARTED, _EXITING = b"[pluto-sync] INFO: Sync process started", b"[pluto-sync] INFO: Sync process exiting"
_KEY = re.compile(r"401 Unauthorized|API key|HTTP 401")


def fate(client: TruthClient | None, metric: str, step: int) -> str:
    """Return where a lost point is: in the client's queue, acknowledged, never given to it, or unknown."""
    if client is None:
        return UNTOLD
    if _within(client.unsent.get(metric, []), step):
        return UNSENT
    if _within(client.sent.get(metric, []), step):
        return ACKNOWLEDGED
    return NEVER if client.whole else UNTOLD


def _astray(truth: Truth, recorded: Recorded, metric: str, step: int) -> bool:
    value = truth.rows[metric][step]
    series = [rows[metric] for rows in recorded.elsewhere.values() if metric in rows]
    return any(step in values and same(values[step], value) for values in series)


def _within(ranges: Iterable[tuple[int, int]], step: int) -> bool:
    return any(first <= step <= last for first, last in ranges)


def explain(case: Case, truths: list[Truth], recorded: Recorded, compared: Comparison) -> str:
    """Return one sentence for each fate that lost points have, or "" when no client tells."""
    counts: dict[str, Counter[int]] = {}
    by_rank = {truth.rank: truth for truth in truths}
    for (rank, metric), steps in compared.lost.items():
        for step in steps:
            told = fate(by_rank[rank].client(metric, step), sent_name(metric), step)
            if _astray(by_rank[rank], recorded, metric, step):
                told = ASTRAY
            counts.setdefault(told, Counter())[rank] += 1
    parts = []
    if ASTRAY in counts:
        parts.append(f"{_counted(counts[ASTRAY])} put into another run by {names(counts[ASTRAY])}")
    if UNSENT in counts:
        errors = [c.error for rank in sorted(counts[UNSENT]) for c in by_rank[rank].clients if c.error]
        why = f": {errors[0].splitlines()[0]}" if errors else ""
        text = f"{_counted(counts[UNSENT])} not sent and still are in the client's queue of "
        parts.append(text + names(counts[UNSENT]) + why + _cut_off(case, counts[UNSENT]))
    if ACKNOWLEDGED in counts:
        who, many = names(counts[ACKNOWLEDGED]), _counted(counts[ACKNOWLEDGED])
        parts.append(
            f"{many} acknowledged to the client of {who}, so lost after the client had done its part"
        )
    if NEVER in counts:
        parts.append(f"{_counted(counts[NEVER])} never given to the client of {names(counts[NEVER])}")
    if UNTOLD in counts:
        cut = _cut_off(case, counts[UNTOLD])
        if cut:
            parts.append(
                f"of {_counted(counts[UNTOLD])} the client of {names(counts[UNTOLD])} told nothing{cut}"
            )
    return "; ".join(parts)


def senders(case: Case, points: Mapping[str, Iterable[int]]) -> str:
    """Return the end of a sentence that names who sent these points (metric → steps), or "" when unknown."""
    wanted = {metric: set(steps) for metric, steps in points.items()}
    shared = {run.run_id for _, run in case.bundle.runs() if run.external_id == case.expected.run_id}
    told: dict[str, None] = {}
    for _, point in case.bundle.points():
        if point.sender and point.run_id in shared and point.step in wanted.get(point.metric, ()):
            told[f"{point.sender!r}" + (f" at {point.peer}" if point.peer else "")] = None
    return f"; sent by {', '.join(list(told)[:4])}" if told else ""


def rejected(truths: list[Truth]) -> list[int]:
    """Return the ranks whose client says that its key was refused."""
    return [truth.rank for truth in truths if any(_KEY.search(client.error) for client in truth.clients)]


def _counted(counts: Counter[int]) -> str:
    total = counts.total()
    return f"{total} were" if total != 1 else "1 was"


def _cut_off(case: Case, ranks: Iterable[int]) -> str:
    """Name the ranks whose upload process was cut off. It logs a line when it starts and when it ends."""
    cut = []
    for rank in sorted(ranks):
        pod = case.pods.get(rank // case.per_node)
        if pod is None:
            continue
        log = case.bundle.log(pod.name, case.launch.container)
        lines = [line for _, line in case.bundle.lines(log)]
        started = sum(_STARTED in line for line in lines)
        if started > sum(_EXITING in line for line in lines):
            cut.append(rank)
    return f"; the upload process of {names(cut)} started and did not come to its end" if cut else ""
