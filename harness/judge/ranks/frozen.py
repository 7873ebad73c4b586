"""Find frozen ranks: a look into the containers that had not ended when the wait, or their time, was over."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from harness.core.clock import seconds
from harness.evidence.kubernetes import torchrun_processes
from harness.evidence.schema.bundle import Process, RendezvousSnapshot
from harness.judge.case import Case
from harness.judge.end import End
from harness.judge.finding import listed

STOPPED: Final = {"T": "stopped by a signal (SIGSTOP)", "t": "held by a debugger"}
"""State of a process → what that means (proc(5))."""
PAUSED = "in a paused state"
"""What containerd says when somebody wants to look into a container that was paused."""


def frozen(case: Case, ends: dict[int, End]) -> End | None:
    """Return the rank whose container was paused or has a stopped process, or None. Of several, the one that
    fell silent first.
    """
    last = {}
    for line, seen in case.bundle.inspections():
        if seen.processes or PAUSED in (seen.error or ""):  # A container that was gone said nothing.
            last[seen.pod] = line, seen
    found = [end for line, seen in last.values() if (end := _of(case, ends, line, seen))]
    return min(found, key=lambda end: (end.at, end.index), default=None)


def _of(case: Case, ends: dict[int, End], line: int, seen: RendezvousSnapshot) -> End | None:
    index = next((index for index, pod in case.pods.items() if pod.name == seen.pod), None)
    if index is None or ends[index].state == "succeeded":
        return None
    logged = max((case.last_logged(rank) for rank in ends[index].ranks), default=0.0)
    if not seen.at_end and logged >= (seconds(seen.at) or 0.0):
        return None  # It went on after this look.
    stopped = [process for process in seen.processes if process.state in STOPPED]
    if stopped:
        what = listed([f"its {_name(p)} (process {p.pid}) is {STOPPED[p.state]}" for p in stopped])
    elif PAUSED in (seen.error or ""):
        what = "its container is paused"
    else:
        return None
    text = f"{case.place(index)} is frozen: {what}"
    refs = (f"inspections.jsonl:{line}", *ends[index].evidence)
    # It froze after its last row, and whatever ended the job came later. Other processes of it log on.
    at = min(case.last_logged(rank) for rank in ends[index].ranks)
    return replace(ends[index], cause="rank.hung", text=text, said="", at=at, follows=False, evidence=refs)


def _name(process: Process) -> str:
    """Return how people call a process: torchrun, or the program or script that it runs."""
    if torchrun_processes.is_agent(process):
        return "torchrun"
    words = [word for word in process.command if not word.startswith("-")] or ["process"]
    script = words[1] if len(words) > 1 and "python" in words[0] else words[0]
    return script.rpartition("/")[2]
