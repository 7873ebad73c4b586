"""The records in processes.jsonl: the processes in the ranks' containers, and how each process ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from harness.evidence.schema.record import Record
from harness.workers.ground_truth import truth_frames


class ProcessEvent(Record):
    """An event that a process recorded about itself (harness/workers/recorder/process_events.py)."""

    id: str
    """The id "<pod uid>/<process id>/<start time in ticks>". It stays the same if the process calls exec."""
    pod: str
    """The name of the pod whose log contains the event."""
    uid: str | None = None
    """The pod's uid, recorded by the harness when it read the log."""
    time_ms: int


class ProcessStart(ProcessEvent):
    """The start of a torchrun agent, of a rank, or of another process that uses torch.distributed or the
    Pluto client."""

    kind: Literal["start"] = "start"
    pid: int
    ppid: int
    host: str
    role: Literal["agent", "rank", "python"]
    """"agent" means a torchrun agent, and "rank" a process that torchrun started. A rank that was started
    without torchrun has the role "python"."""
    argv: list[str]
    """The command line, truncated if it is long."""
    env: dict[str, str]
    """The environment variables that define the rank and the world: RANK, WORLD_SIZE, …"""
    limit: str = ""
    """The `timeout N` command in the run script under which the process runs, or ""."""
    limit_since_ms: int | None = None
    """The time at which the command in `limit` started, in milliseconds since the epoch."""


class ProcessGroup(ProcessEvent):
    """The initialisation of torch.distributed's default process group in a process."""

    kind: Literal["group"] = "group"
    rank: int
    world: int
    backend: str = ""
    """The backend of the default process group, such as "gloo". Older recorders did not record it."""


class AgentWorkers(ProcessEvent):
    """The start of ranks by a torchrun agent, with the rank numbers that the rendezvous assigned."""

    kind: Literal["workers"] = "workers"
    restart: int
    """The number of times that the agent had already restarted its ranks."""
    max_restarts: int
    group_rank: int
    nodes: int
    """The number of agents in the rendezvous."""
    run_id: str
    workers: list[tuple[int, int, int, int]]
    """Each entry is (process id, local rank, rank, world size)."""


class AgentFailure(ProcessEvent):
    """A failure of one or more ranks that a torchrun agent detected."""

    kind: Literal["failed"] = "failed"
    failures: list[tuple[int, int, int, int, str]]
    """Each entry is (process id, local rank, rank, exit code or negative signal number, message)."""
    oom_kills: int = 0
    """The number of the container's processes that the OOM killer had killed when the failure was
    detected."""


class RankStack(ProcessEvent):
    """The stack of a rank's main thread at the time when the rank received SIGTERM, recorded by its torchrun
    agent."""

    kind: Literal["stack"] = "stack"
    pid: int
    local: int
    rank: int
    text: str
    """The stack as faulthandler writes it, innermost frame first. The outermost frames may be missing."""


class AgentResult(ProcessEvent):
    """A torchrun agent's result: "SUCCEEDED", "FAILED", or "raised" if the agent itself failed."""

    kind: Literal["result"] = "result"
    state: str
    error: str = ""


class ProcessEnd(ProcessEvent):
    """The end of a process, recorded by the process itself.

    Nothing is recorded if a signal kills the process.
    """

    kind: Literal["end"] = "end"
    how: Literal["exit", "exception", "os._exit", "exec"]
    """How the process ended. "exec" means that it called exec and continues as another program."""
    code: int | None
    """The exit code. None if the program raised SystemExit and Python is older than 3.12, which does not
    expose the exit code."""
    error: str = ""
    open: int = 0
    """The number of Pluto runs that the process left unfinished."""
    gpu: bool | None = None
    """Whether PyTorch initialised CUDA, ROCm or XPU in the process. None if that is unknown: without PyTorch,
    with another library that can use a GPU, and in bundles from older recorders."""


ProcessLine = Annotated[
    ProcessStart | ProcessGroup | AgentWorkers | AgentFailure | RankStack | AgentResult | ProcessEnd,
    Field(discriminator="kind"),
]
PROCESS_LINE: TypeAdapter[ProcessLine] = TypeAdapter(ProcessLine)


def decode(nonce: str, line: str, pod: str, uid: str | None = None) -> Iterator[ProcessLine]:
    """Yield the events with valid checksums in one line from a pod's log. Malformed events are skipped."""
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
    fields = {name: value for name, value in frame.items() if name not in {"k", "t"}}
    return {**fields, "kind": frame["k"], "time_ms": frame["t"], "pod": pod, "uid": uid}
