"""The records of processes.jsonl: which processes ran in ranks' containers, and how each of them ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from harness.evidence.schema.record import Record
from harness.workers import truth_frames


class ProcessEvent(Record):
    """What one process recorded of itself (harness/workers/outside_process.py)."""

    id: str
    """"<pod uid>/<process id>/<start time in ticks>". A program that another one became has the same id."""
    pod: str
    """Name of the pod whose log holds it."""
    uid: str | None = None
    """The pod's uid, as its log was read."""
    time_ms: int


class ProcessStart(ProcessEvent):
    """A process that matters: torchrun's agent, a rank, or a user of torch.distributed or Pluto's client."""

    kind: Literal["start"] = "start"
    pid: int
    ppid: int
    host: str
    role: Literal["agent", "rank", "python"]
    """"rank" for a process that torchrun started. Other ranks are "python"."""
    argv: list[str]
    """Its command line, or the beginning of a long one."""
    env: dict[str, str]
    """The variables that say which world it believes in: RANK, WORLD_SIZE, …"""
    limit: str = ""
    """The `timeout N` of the run script that it runs under, or ""."""
    limit_since_ms: int | None = None
    """When that began."""


class ProcessGroup(ProcessEvent):
    """The process initialised torch.distributed."""

    kind: Literal["group"] = "group"
    rank: int
    world: int


class AgentWorkers(ProcessEvent):
    """torchrun's agent started its ranks, with what its rendezvous gave them."""

    kind: Literal["workers"] = "workers"
    restart: int
    """How often the agent had restarted its ranks before."""
    max_restarts: int
    group_rank: int
    nodes: int
    """The number of agents that met."""
    run_id: str
    workers: list[tuple[int, int, int, int]]
    """(process id, local rank, rank, world size)."""


class AgentFailure(ProcessEvent):
    """torchrun's agent saw ranks fail."""

    kind: Literal["failed"] = "failed"
    failures: list[tuple[int, int, int, int, str]]
    """(process id, local rank, rank, exit code or minus the signal, message)."""
    oom_kills: int = 0
    """How many processes of the container the kernel had killed by then, because its memory was used up."""


class AgentResult(ProcessEvent):
    """The result of torchrun's agent: SUCCEEDED, FAILED, or "raised" with the error."""

    kind: Literal["result"] = "result"
    state: str
    error: str = ""


class ProcessEnd(ProcessEvent):
    """How the process ended, as far as it noticed. A process that a signal kills records no end."""

    kind: Literal["end"] = "end"
    how: Literal["exit", "exception", "os._exit", "exec"]
    """"exec": the process became another program."""
    code: int | None
    """None: Python before 3.12 does not tell the exit code of a program that raises SystemExit by itself."""
    error: str = ""
    open: int = 0
    """The number of runs of Pluto's client that it had not finished."""


ProcessLine = Annotated[
    ProcessStart | ProcessGroup | AgentWorkers | AgentFailure | AgentResult | ProcessEnd,
    Field(discriminator="kind"),
]
PROCESS_LINE: TypeAdapter[ProcessLine] = TypeAdapter(ProcessLine)


def decode(nonce: str, line: str, pod: str, uid: str | None = None) -> Iterator[ProcessLine]:
    """Yield the authentic events in one line of a pod's log. A malformed event is left out."""
    try:
        frames = list(truth_frames.decode(nonce, [line], truth_frames.PROCESS_MARK))
    except ValueError:
        return
    for frame in frames:
        try:
            yield PROCESS_LINE.validate_python(_record(frame, pod, uid))
        except (KeyError, TypeError, AttributeError, ValidationError):
            continue


def _record(frame: dict[str, Any], pod: str, uid: str | None) -> dict[str, Any]:
    rest = {name: value for name, value in frame.items() if name not in {"k", "t"}}
    return {**rest, "kind": frame["k"], "time_ms": frame["t"], "pod": pod, "uid": uid}
