"""Find restarts by torchrun, using the ranks' ground truth and the torchrun agents' log lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from harness.core.clock import seconds, timestamp
from harness.evidence.schema.ground_truth import TruthStart
from harness.judge.case import Case, Restart, names
from harness.judge.finding import counted
from harness.judge.points import elastic
from harness.judge.points.ground_truth import Attempt, Truth

ONE_START = 30.0
"""Maximum number of seconds between the starts of ranks in the same world."""
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
"""Pattern for a log line in which torchrun's agent reports a failed rank."""


def by_torchrun(case: Case, truths: list[Truth], other_restarts: list[Restart]) -> Iterator[Restart]:
    """Yield one restart for each time that torchrun restarted its ranks, based on their ground truth.

    torchrun increments its restart count only if its own ranks fail. A failure in another pod leads to a new
    rendezvous with the same count. Such a restart is proved only by the failure in the other pod or by a
    restart in `other_restarts`.
    """
    agents = _agents(case)
    exec_results = _became_another(case)
    is_elastic = case.launch.max_nodes is not None
    all_lives = [life for truth in truths for life in _lives(truth, agents, exec_results, is_elastic)]
    yield from _resized(case, [life for life in all_lives if is_elastic and life.world is not None])
    lives = [life for life in all_lives if not is_elastic or life.world is None]
    counts = {life.number for life in lives if isinstance(life.number, int)}
    by_time: dict[int | str | None, list[_Life]] = {}
    for life in lives:
        if life.number is None and not (counts or other_restarts):
            continue
        by_time.setdefault(life.number, []).append(life)
    for number, entries in by_time.items():
        at = min(life.at for life in entries)
        ranks = sorted({life.rank for life in entries})
        limit = entries[0].limit
        which = "after a new rendezvous" if number is None else f"(restart {number} of at most {limit})"
        failures_text = _failures(case, {life.pod for life in entries}, at)
        text = f"torchrun started {names(ranks)} again at {timestamp(at)} {which}{failures_text}"
        by_script = isinstance(number, str)
        if by_script:
            text = (
                f"the run script started torchrun with {names(ranks)} again at {timestamp(at)}{failures_text}"
            )
        allowed = not isinstance(number, int) or limit is None or number <= limit
        yield Restart(at, ranks, text, allowed, [f"truth/{rank}.jsonl" for rank in ranks], by_script)
    if not (counts or other_restarts):
        yield from _unproven([life for life in lives if life.number is None and not life.after_an_end])


def _resized(case: Case, lives: list[_Life]) -> Iterator[Restart]:
    """Yield one restart for each world of a different size that torchrun formed."""
    worlds: list[list[_Life]] = []
    for life in sorted(lives, key=lambda life: life.at):
        last = worlds[-1][0] if worlds else None
        if last is None or last.world != life.world or life.at - last.at > ONE_START:
            worlds.append([])
        worlds[-1].append(life)
    for world in worlds:
        at, ranks = world[0].at, sorted({life.rank for life in world})
        text = f"torchrun formed a world of {counted(world[0].world or 0, 'rank')} at {timestamp(at)}"
        refs = [f"truth/{rank}.jsonl" for rank in ranks]
        yield Restart(at, ranks, text + elastic.why_formed(case, at), True, refs, resized=True)


def _agents(case: Case) -> dict[tuple[str, int], str]:
    """Map each rank's (pod, process id) to the id of the torchrun agent that started it."""
    return {
        (of_pod.pod, pid): agent.id
        for of_pod in case.processes.values()
        for agent in of_pod.agents
        for one in agent.rounds
        for pid, *_ in one.workers
    }


def _became_another(case: Case) -> dict[tuple[str, int], bool]:
    """Map each (pod, process id) that called os.exec to whether its Pluto runs had ended before the call."""
    return {
        (of_pod.pod, process.pid): all(not end.open for end in execs)
        for of_pod in case.processes.values()
        for process in of_pod.processes.values()
        if (execs := [end for end in process.ends if end.how == "exec"])
    }


def _another(agents: dict[tuple[str, int], str], before: TruthStart, after: TruthStart) -> str | None:
    """Return the id of the torchrun agent that started `after` if another agent started `before`, or None."""
    first, second = (agents.get((start.pod or "", start.pid or 0)) for start in (before, after))
    return second if first is not None and first != second else None


def unrestarted_processes(truths: list[Truth]) -> list[str]:
    """Return sentences about ranks whose points are from several processes although there was no restart."""
    texts = []
    for truth in truths:
        at_once = [p for p in pairwise(truth.attempts) if _same_life(*p) and _overlap(*p)]
        in_order = [p for p in pairwise(truth.attempts) if _same_life(*p) and p[0].end and not _overlap(*p)]
        if at_once:
            texts.append(f"{len(at_once) + 1} processes of rank {truth.rank} logged at the same time")
        if in_order:
            texts.append(
                f"{len(in_order) + 1} processes of rank {truth.rank} logged one after the other, "
                "and each finished"
            )
    return texts


@dataclass(frozen=True)
class _Life:
    """A rank's process that replaced an earlier process of the same rank.

    `number` is torchrun's restart count, None if the count did not change, or the id of the torchrun agent
    that started the process if a different agent started the earlier process.
    """

    rank: int
    at: float
    pod: str
    number: int | str | None
    limit: int | None
    world: int | None
    """The world size if it differs from the earlier process's, otherwise None."""
    after_an_end: bool
    """Whether the count is unchanged and the earlier process had ended normally or called os.exec."""
    by_exec: bool = False
    """Whether the earlier process became this process through os.exec before its Pluto runs had ended."""


def _lives(
    truth: Truth,
    agents: dict[tuple[str, int], str],
    exec_results: dict[tuple[str, int], bool],
    resizable: bool,
) -> Iterator[_Life]:
    before: Attempt | None = None
    for after in truth.own:
        life = _life(truth.rank, before, after, agents, exec_results, resizable)
        if life is not None:
            yield life
        before = after


def _life(
    rank: int,
    before: Attempt | None,
    after: Attempt,
    agents: dict[tuple[str, int], str],
    exec_results: dict[tuple[str, int], bool],
    resizable: bool,
) -> _Life | None:
    """Return a _Life if `after` replaced a process of its rank, even an unrecorded one, or None.

    `resizable` means that the rank can move to another pod when the world size changes.
    """
    start, first = after.start, before.start if before else None
    if start is None or start.restart is None:
        return None
    in_the_pod = first is not None and first.pod == start.pod
    in_place = first is not None and in_the_pod and first.restart == start.restart
    number: int | str | None = None if in_place or not start.restart else start.restart
    if first is not None and in_the_pod and (another := _another(agents, first, start)) is not None:
        number = another
    world = start.world if first is not None and first.world != start.world else None
    has_moved = not in_the_pod and not (resizable and world is not None)
    if number is None and (before is None or has_moved or _overlap(before, after)):
        return None
    place = (start.pod or "", start.pid or 0)
    finished = exec_results.get(place) if first is not None and (first.pod, first.pid) == place else None
    after_an_end = number is None and before is not None and (before.end is not None or bool(finished))
    at, pod = start.time_ms / 1000, start.pod or ""
    return _Life(rank, at, pod, number, start.max_restarts, world, after_an_end, by_exec=finished is False)


def _same_life(before: Attempt, after: Attempt) -> bool:
    """Return whether two processes ran in the same pod without a restart of the rank between them.

    Either their restart counts are equal, or one of them is a child process.
    """
    first, start = before.start, after.start
    if first is None or start is None:
        return False
    of_one_rank = before.is_child or after.is_child or first.restart == start.restart
    return first.pod == start.pod and of_one_rank


def _overlap(before: Attempt, after: Attempt) -> bool:
    """Return whether the first process was still logging after the second had started."""
    last, start = before.last_ms, after.start
    return last is not None and start is not None and last > start.time_ms


def _unproven(lives: list[_Life]) -> Iterator[Restart]:
    for life in lives:
        text = f"rank {life.rank} was started again at {timestamp(life.at)} in pod {life.pod}, but "
        text += "torchrun's restart count did not change: a loop in the run script, or a second torchrun?"
        if life.by_exec:
            text = f"rank {life.rank} in pod {life.pod} replaced itself with another program (os.exec) at "
            text += f"{timestamp(life.at)}, before it had finished its Pluto run"
        yield Restart(life.at, [life.rank], text, False, [f"truth/{life.rank}.jsonl"])


def _failures(case: Case, pods: set[str], before: float) -> str:
    """Return a clause listing the failures that torchrun logged before it restarted the ranks, or ""."""
    failures: dict[str, None] = {}
    for pod in sorted(pods):
        path = case.bundle.log(pod, case.launch.container)
        for _, raw in case.bundle.lines(path):
            line = raw.decode(errors="replace")
            match = _FAILED.search(line)
            if match and (seconds(line.partition(" ")[0]) or 0.0) <= before:
                failures[f"in pod {pod} local rank {match[2]} failed with exit code {match[1]}"] = None
    return f": {', '.join(list(failures)[-4:])}" if failures else ""
