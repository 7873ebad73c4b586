"""What became of points that are not in the run, as far as the ranks' own clients tell."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from harness.evidence.schema import TruthClient
from harness.verdict.case import Case, names
from harness.verdict.points import Comparison
from harness.verdict.truth import Truth

UNSENT, ACKNOWLEDGED, NEVER, UNTOLD = "unsent", "acknowledged", "never", "untold"
_STARTED, _EXITING = b"[pluto-sync] INFO: Sync process started", b"[pluto-sync] INFO: Sync process exiting"
_KEY = re.compile(r"401 Unauthorized|API key|HTTP 401")


def fate(client: TruthClient | None, metric: str, step: int) -> str:
    """Of one lost point: still in the client's queue, acknowledged to it, never given to it, or not known."""
    if client is None:
        return UNTOLD
    if _within(client.unsent.get(metric, []), step):
        return UNSENT
    if _within(client.sent.get(metric, []), step):
        return ACKNOWLEDGED
    return NEVER if client.whole else UNTOLD


def _within(ranges: Iterable[tuple[int, int]], step: int) -> bool:
    return any(first <= step <= last for first, last in ranges)


def explain(case: Case, truths: list[Truth], compared: Comparison) -> str:
    """One sentence for each fate that lost points have, "" when no client tells."""
    counts: dict[str, Counter[int]] = {}
    by_rank = {truth.rank: truth for truth in truths}
    for (rank, metric), steps in compared.lost.items():
        for step in steps:
            counts.setdefault(fate(by_rank[rank].client, metric, step), Counter())[rank] += 1
    parts = []
    if UNSENT in counts:
        errors = [c.error for rank in sorted(counts[UNSENT]) if (c := by_rank[rank].client) and c.error]
        why = f": {errors[0]}" if errors else ""
        text = (
            f"{_counted(counts[UNSENT])} not sent and still are in the client's queue of {_who(counts[UNSENT])}"
        )
        parts.append(text + why + _cut_off(case, counts[UNSENT]))
    if ACKNOWLEDGED in counts:
        who, many = _who(counts[ACKNOWLEDGED]), _counted(counts[ACKNOWLEDGED])
        parts.append(
            f"{many} acknowledged to the client of {who}, so lost after the client had done its part"
        )
    if NEVER in counts:
        parts.append(f"{_counted(counts[NEVER])} never given to the client of {_who(counts[NEVER])}")
    if UNTOLD in counts:
        cut = _cut_off(case, counts[UNTOLD])
        if cut:
            parts.append(
                f"of {_counted(counts[UNTOLD])} the client of {_who(counts[UNTOLD])} told nothing{cut}"
            )
    return "; ".join(parts)


def rejected(truths: list[Truth]) -> list[int]:
    """Ranks whose client says that its key was refused."""
    return [truth.rank for truth in truths if truth.client and _KEY.search(truth.client.error)]


def _counted(counts: Counter[int]) -> str:
    total = counts.total()
    return f"{total} were" if total != 1 else "1 was"


def _who(counts: Counter[int]) -> str:
    return names(counts)


def _cut_off(case: Case, ranks: Iterable[int]) -> str:
    """The upload process says in the rank's log when it starts and when it ends."""
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
