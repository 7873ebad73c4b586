"""Restarts by torchrun's own agents, as the ranks' ground truth and the agents' logs tell them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from harness.core.clock import seconds
from harness.evidence.truth_records import TruthStart
from harness.judge.case import Case, names
from harness.judge.restart import Restart, clock
from harness.judge.truth import Truth

_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
"""The line in which torchrun's agent logs how one of its ranks ended."""


def by_torchrun(case: Case, truths: list[Truth]) -> Iterator[Restart]:
    """Yield one restart for each time that torchrun restarted its ranks, from the ranks' own ground truth."""
    by_time: dict[int | str | None, list[tuple[int, int, str, int | None]]] = {}
    agents = _agents(case)
    for truth in truths:
        for before, after in pairwise([None, *(attempt.start for attempt in truth.attempts)]):
            if after is None or after.restart is None:
                continue
            if before is None or before.pod != after.pod:
                if not after.restart:
                    continue
                number: int | str | None = after.restart  # lives before it ended before they logged anything
            elif (another := _another(agents, before, after)) is not None:
                number = another
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
        by_script = isinstance(number, str)
        if by_script:
            text = f"the run script started torchrun again at {clock(at)}, and that {names(ranks)}{why}"
        yield Restart(at, ranks, text, True, [f"truth/{rank}.jsonl" for rank in ranks], by_script)


def _agents(case: Case) -> dict[tuple[str, int], str]:
    """Map (pod, process id) of each rank that torchrun started to the id of that torchrun."""
    return {
        (of_pod.pod, pid): agent.id
        for of_pod in case.processes.values()
        for agent in of_pod.agents
        for one in agent.rounds
        for pid, *_ in one.workers
    }


def _another(agents: dict[tuple[str, int], str], before: TruthStart, after: TruthStart) -> str | None:
    """Return the id of the torchrun that started a rank's life, where another one started the life before."""
    first, then = (agents.get((start.pod or "", start.pid or 0)) for start in (before, after))
    return then if first is not None and first != then else None


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
