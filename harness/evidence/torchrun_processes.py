"""Find torchrun agents in a container's process list, with their options and whether they started ranks.

An agent starts its ranks after the rendezvous, so an agent that never had a child process is still waiting
for other agents. An agent whose ranks have ended does not have a child process either. It is then waiting for
the other agents to end, or reporting a failure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.evidence.schema.bundle import Process, RendezvousSnapshot

_MODULES = {"torch.distributed.run", "torch.distributed.launch"}
_FLAGS = {"standalone", "no_python", "run_path", "m", "module", "use_env", "virtual_local_rank"}
DEFAULT_PORT, C10D_PORT = "29500", "29400"
"""torchrun's default ports. torchrun uses DEFAULT_PORT if --master_port is not set, and C10D_PORT if
--rdzv_endpoint has no port."""
IDLE_TICKS = 20
"""The maximum number of CPU ticks (1/100 s) that an idle agent uses in two seconds.

In measurements, an agent that polled while it waited used 0 to 3 ticks, and several times as many on slower
cores. A starting agent uses all available CPU.
"""
RANK_TICKS = 5
"""If an agent's terminated child processes used more CPU ticks (1/100 s) than this, some of them were ranks.
In measurements, the child processes of agents that only waited for other agents used 0 ticks."""


@dataclass(frozen=True)
class Agent:
    """One torchrun agent. The properties apply torchrun's defaults to options that are not set."""

    options: dict[str, str]
    started: bool
    """Whether the agent has started its ranks, even if they have since ended."""
    busy: bool = False
    """Whether the agent is using CPU time. A busy agent may still be starting up rather than waiting."""

    @property
    def host(self) -> str:
        return self._endpoint[0] or self.options.get("master_addr", "")

    @property
    def port(self) -> str:
        return self._endpoint[1] or self.options.get("master_port", DEFAULT_PORT)

    @property
    def _endpoint(self) -> tuple[str, str]:
        """Return the host and port of --rdzv_endpoint, as torchrun parses it, or ("", "")."""
        endpoint = self.options.get("rdzv_endpoint", "")
        host, colon, port = endpoint.rpartition(":")
        if not endpoint or colon:
            return host.removeprefix("[").removesuffix("]"), port
        return endpoint, C10D_PORT

    @property
    def rendezvous_id(self) -> str:
        return self.options.get("rdzv_id", "none")

    @property
    def nodes(self) -> str:
        """Return the number of nodes that the agent expects. For a range, this is the upper limit."""
        return self.options.get("nnodes", "1").rpartition(":")[2]


def _arguments(command: list[str]) -> list[str] | None:
    """Return the arguments after torchrun in a command line, or None if the command does not run torchrun."""
    for position, word in enumerate(command[:4]):
        if word.rpartition("/")[2] == "torchrun" or (word in _MODULES and command[position - 1] == "-m"):
            return command[position + 1 :]
    return None


def _options(arguments: list[str]) -> dict[str, str]:
    """Parse the options before the script in a torchrun command line, such as `--master-port=1` or
    `--master_port 1`."""
    values: dict[str, str] = {}
    words = iter(arguments)
    for word in words:
        if not word.startswith("-"):
            break
        name, separator, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if name not in _FLAGS:
            values[name] = value if separator else next(words, "")
    return values


def options(command: list[str]) -> dict[str, str] | None:
    """Return the options of a torchrun command line, or None if the command does not run torchrun.

    The value of a flag is "".
    """
    arguments = _arguments(command)
    if arguments is None:
        return None
    flags = {word.lstrip("-").replace("-", "_") for word in arguments if word.startswith("--")}
    return {**_options(arguments), **dict.fromkeys(flags & _FLAGS, "")}


def is_agent(process: Process) -> bool:
    """Return whether a process is a torchrun agent, or a fork of an agent that still has its command line."""
    return _arguments(process.command) is not None


def agents(inspection: RendezvousSnapshot) -> list[Agent]:
    """Return the torchrun agents among a container's processes. Forks of agents are left out."""
    result = []
    agent_arguments = {
        process.pid: arguments
        for process in inspection.processes
        if (arguments := _arguments(process.command)) is not None
    }
    for process in inspection.processes:
        if process.pid in agent_arguments and process.parent not in agent_arguments:
            children = [other for other in inspection.processes if other.parent == process.pid]
            has_started = (
                any(child.pid not in agent_arguments for child in children) or process.reaped > RANK_TICKS
            )
            busy = process.ticks > IDLE_TICKS
            result.append(Agent(_options(agent_arguments[process.pid]), has_started, busy))
    return result


def without_ranks(inspections: Iterable[RendezvousSnapshot]) -> dict[str, bool]:
    """Return, for each pod whose torchrun agent has not started its ranks, whether the agent is busy."""
    return {one.pod: agent.busy for one in inspections for agent in agents(one) if not agent.started}
