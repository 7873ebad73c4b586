"""Find frozen ranks in snapshots of containers.

The harness takes a snapshot of each container that is still running when a time limit expires or when the
harness stops waiting.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from harness.core.clock import seconds
from harness.evidence import torchrun_processes
from harness.evidence.schema.bundle import Process, RendezvousSnapshot
from harness.judge import rank_words
from harness.judge.case import Case
from harness.judge.finding import listed
from harness.judge.pod_end import End

STOPPED: Final = {"T": "stopped by a signal (SIGSTOP)", "t": "held by a debugger"}
"""Meanings of the process states of a frozen process (proc(5))."""
PAUSED = "in a paused state"
"""Part of containerd's error message for exec into a paused container."""


def frozen(case: Case, ends: dict[int, End]) -> End | None:
    """Return an `End` for a rank whose container is paused or contains a stopped process, or None.

    If there are several such ranks, the one that stopped logging first is returned.
    """
    last_snapshots = {}
    for line, snapshot in case.bundle.inspections():
        # A container without processes had ended, unless it was paused.
        if snapshot.processes or PAUSED in (snapshot.error or ""):
            last_snapshots[snapshot.pod] = line, snapshot
    candidates = [
        end for line, snapshot in last_snapshots.values() if (end := _of(case, ends, line, snapshot))
    ]
    return min(candidates, key=lambda end: (end.at, end.index), default=None)


def _of(case: Case, ends: dict[int, End], line: int, snapshot: RendezvousSnapshot) -> End | None:
    index = next((index for index, pod in case.pods.items() if pod.name == snapshot.pod), None)
    if index is None or ends[index].state == "succeeded":
        return None
    logged = max((case.last_logged(rank) for rank in ends[index].ranks), default=0.0)
    if not snapshot.at_end and logged >= (seconds(snapshot.at) or 0.0):
        return None  # The rank logged points after this snapshot, so it was not frozen.
    stopped_processes = [process for process in snapshot.processes if process.state in STOPPED]
    if stopped_processes:
        description = listed(
            [f"its {_name(p)} (process {p.pid}) is {STOPPED[p.state]}" for p in stopped_processes]
        )
    elif PAUSED in (snapshot.error or ""):
        description = "its container is paused"
    else:
        return None
    text = f"{case.place(index)} {rank_words.of_node(case, index).present} frozen: {description}"
    refs = (f"inspections.jsonl:{line}", *ends[index].evidence)
    # A frozen rank logs no more points. The earliest time counts, because other ranks in the pod can still
    # log.
    at = min(case.last_logged(rank) for rank in ends[index].ranks)
    return replace(
        ends[index], cause="rank.hung", text=text, log_quote="", at=at, follows=False, evidence=refs
    )


def _name(process: Process) -> str:
    """Return a short name for a process: "torchrun", or the name of its script or program."""
    if torchrun_processes.is_agent(process):
        return "torchrun"
    words = [word for word in process.command if not word.startswith("-")] or ["process"]
    script = words[1] if len(words) > 1 and "python" in words[0] else words[0]
    return script.rpartition("/")[2]
