"""torchrun's agents in a container's process list: how each was called, and whether it has started its ranks.

An agent starts the processes of its ranks when all agents have met: one that never had a child waits for
others. One whose ranks have ended has none any more: it waits for the others' end, or says what failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.evidence.schema import RendezvousSnapshot

_MODULES = {"torch.distributed.run", "torch.distributed.launch"}
_FLAGS = {"standalone", "no_python", "run_path", "m", "module", "use_env", "virtual_local_rank"}
DEFAULT_PORT = "29500"
IDLE_TICKS = 20
"""Of the 200 of two seconds. One that waits polls: 0 to 3 here, several times that on a slower core; one that
starts takes what it can get."""
RANK_TICKS = 5
"""Of children that ended: those of ranks took more. One that waits for others had none here."""


@dataclass(frozen=True)
class Agent:
    """One torchrun. Options as they were given, with torchrun's own defaults."""

    options: dict[str, str]
    started: bool
    """It has started its ranks: they run, or have ended."""
    busy: bool = False
    """It works on something: it may still be starting, and does not wait for others yet."""

    @property
    def host(self) -> str:
        return self.options.get("rdzv_endpoint", "").rpartition(":")[0] or self.options.get("master_addr", "")

    @property
    def port(self) -> str:
        endpoint = self.options.get("rdzv_endpoint", "")
        return endpoint.rpartition(":")[2] if endpoint else self.options.get("master_port", DEFAULT_PORT)

    @property
    def rendezvous_id(self) -> str:
        return self.options.get("rdzv_id", "none")

    @property
    def nodes(self) -> str:
        """How many nodes it expects: the upper end of a range."""
        return self.options.get("nnodes", "1").rpartition(":")[2]


def _arguments(command: list[str]) -> list[str] | None:
    """What follows torchrun in a command line; None: it is none."""
    for position, word in enumerate(command[:4]):
        if word.rpartition("/")[2] == "torchrun" or (word in _MODULES and command[position - 1] == "-m"):
            return command[position + 1 :]
    return None


def _options(arguments: list[str]) -> dict[str, str]:
    """Up to the script: `--master-port=1`, `--master_port 1`."""
    found: dict[str, str] = {}
    words = iter(arguments)
    for word in words:
        if not word.startswith("-"):
            break
        name, given, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if name not in _FLAGS:
            found[name] = value if given else next(words, "")
    return found


def agents(inspection: RendezvousSnapshot) -> list[Agent]:
    """Every torchrun of a container, but for what it forked of itself."""
    found = []
    ours = {
        process.pid: arguments
        for process in inspection.processes
        if (arguments := _arguments(process.command)) is not None
    }
    for process in inspection.processes:
        if process.pid in ours and process.parent not in ours:
            children = [other for other in inspection.processes if other.parent == process.pid]
            started = any(child.pid not in ours for child in children) or process.reaped > RANK_TICKS
            busy = process.ticks > IDLE_TICKS
            found.append(Agent(_options(ours[process.pid]), started, busy))
    return found


def without_ranks(inspections: Iterable[RendezvousSnapshot]) -> dict[str, bool]:
    """Pods in which a torchrun has started no rank yet → whether it is busy."""
    return {one.pod: agent.busy for one in inspections for agent in agents(one) if not agent.started}
