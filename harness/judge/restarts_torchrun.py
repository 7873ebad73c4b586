"""Restarts by torchrun's own agents, as the ranks' ground truth and the agents' logs tell them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from harness.core.clock import seconds
from harness.judge.case import Case, names
from harness.judge.restart import Restart, clock
from harness.judge.truth import Truth

_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
"""The line in which torchrun's agent logs how one of its ranks ended."""


def by_torchrun(case: Case, truths: list[Truth]) -> Iterator[Restart]:
    """Yield one restart for each time that torchrun restarted its ranks, from the ranks' own ground truth."""
    by_time: dict[int | None, list[tuple[int, int, str, int | None]]] = {}
    for truth in truths:
        for before, after in pairwise([None, *(attempt.start for attempt in truth.attempts)]):
            if after is None or after.restart is None:
                continue
            if before is None or before.pod != after.pod:
                if not after.restart:
                    continue
                number: int | None = after.restart  # lives before it that ended before they logged anything
            else:
                number = after.restart if after.restart != before.restart else None
            by_time.setdefault(number, []).append(
                (truth.rank, after.time_ms, after.pod or "", after.max_restarts)
            )
    for number, entries in by_time.items():
        at = min(time for _, time, _, _ in entries) / 1000
        ranks = sorted({rank for rank, *_ in entries})
        limit = entries[0][3]
        which = "after a new rendezvous" if number is None else f"(restart {number} of at most {limit})"
        why = _failures(case, {pod for _, _, pod, _ in entries}, at)
        text = f"torchrun started {names(ranks)} again at {clock(at)} {which}{why}"
        yield Restart(at, ranks, text, True, [f"truth/{rank}.jsonl" for rank in ranks])


def _failures(case: Case, pods: set[str], before: float) -> str:
    """Return what torchrun logged of the failed ranks before it restarted them."""
    told: dict[str, None] = {}
    for pod in sorted(pods):
        path = case.bundle.log(pod, case.launch.container)
        for _, raw in case.bundle.lines(path):
            line = raw.decode(errors="replace")
            failed = _FAILED.search(line)
            if failed and (seconds(line.partition(" ")[0]) or 0.0) <= before:
                told[f"in pod {pod} local rank {failed[2]} failed with exit code {failed[1]}"] = None
    return f": {', '.join(list(told)[-4:])}" if told else ""
