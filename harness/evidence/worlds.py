"""Determine which ranks ran in which pod, their worlds, and how each rank ended, using processes.jsonl.

A rank's world is the process group with which it initialised torch.distributed. If it did not initialise
torch.distributed, its world is the one that torchrun's rendezvous assigned. A process with neither is alone
in a world of size 1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from harness.evidence.kubernetes.objects import Pod
from harness.evidence.schema.bundle import Expected
from harness.evidence.schema.ground_truth import TruthStart
from harness.evidence.schema.processes import (
    AgentFailure,
    AgentResult,
    AgentWorkers,
    ProcessEnd,
    ProcessGroup,
    ProcessLine,
    ProcessStart,
    RankStack,
)

PATH = "processes.jsonl"


@dataclass
class ProcessRecord:
    """All recorded events of one process. A process that called exec has two starts and two ends."""

    id: str
    starts: list[ProcessStart] = field(default_factory=list)
    group: ProcessGroup | None = None
    rounds: list[AgentWorkers] = field(default_factory=list)
    """The starts of this process's ranks, if the process is a torchrun agent. Events about the same start are
    merged."""
    failures: list[AgentFailure] = field(default_factory=list)
    stacks: list[tuple[int, RankStack]] = field(default_factory=list)
    """The recorded stacks of this process's ranks, if the process is a torchrun agent, each with its line
    number in processes.jsonl."""
    result: AgentResult | None = None
    ends: list[ProcessEnd] = field(default_factory=list)
    line: int = 0

    @property
    def ref(self) -> str:
        return f"{PATH}:{self.line}"

    @property
    def start(self) -> ProcessStart | None:
        return self.starts[-1] if self.starts else None

    @property
    def began(self) -> int:
        """Return the time of the process's first event, in milliseconds since the epoch."""
        events = [*self.starts, *self.rounds, *self.ends, *([self.group] if self.group else [])]
        return min((event.time_ms for event in events), default=0)

    @property
    def pid(self) -> int:
        text = self.id.split("/")[1] if self.id.count("/") == 2 else ""
        return int(text) if text.isdecimal() else 0

    @property
    def end(self) -> ProcessEnd | None:
        """Return the process's last recorded end, or None if none was recorded or the process called exec."""
        last = self.ends[-1] if self.ends else None
        return last if last is not None and last.how != "exec" else None

    @property
    def last_ms(self) -> int:
        """Return the time of the process's last event, in milliseconds since the epoch."""
        events = [*self.rounds, *self.failures, *self.ends, *([self.result] if self.result else [])]
        return max((event.time_ms for event in events), default=self.began)

    @property
    def argv(self) -> list[str]:
        return self.start.argv if self.start else []

    def env(self, name: str) -> int | None:
        """Return an environment variable of the process as a number, or None if its value is not a number."""
        text = self.start.env.get(name, "") if self.start else ""
        return int(text) if text.isdecimal() else None


@dataclass(frozen=True)
class RankLife:
    """One lifetime of a rank, from start to end, with or without torchrun."""

    pod: str
    rank: int
    world: int
    by: str
    """The source of `rank` and `world`: "group" (torch.distributed), "torchrun", or "" if they are
    assumed."""
    restart: int
    processes: tuple[ProcessRecord, ...]
    """The recorded processes that ran as this rank."""
    agent: ProcessRecord | None
    failure: tuple[int, str] | None
    """The failure reported by torchrun, as (exit code or negative signal number, message)."""
    pid: int

    @property
    def ends(self) -> list[ProcessEnd]:
        return [end for process in self.processes if (end := process.end) is not None]

    @property
    def stack(self) -> tuple[str, str] | None:
        """Return the rank's stack at SIGTERM and a reference to its line in the bundle, or None if it was not
        recorded."""
        recorded = self.agent.stacks if self.agent else []
        own = [(event.text, f"{PATH}:{line}") for line, event in recorded if event.pid == self.pid]
        return own[-1] if own else None

    @property
    def ref(self) -> str:
        source = self.processes[0] if self.processes else self.agent
        return source.ref if source else PATH


@dataclass(frozen=True)
class PodProcesses:
    """The recorded processes in one pod."""

    pod: str
    processes: dict[str, ProcessRecord]

    @property
    def agents(self) -> list[ProcessRecord]:
        """Return the torchrun agents that started ranks, oldest first."""
        return [process for process in self._ordered if process.rounds]

    @property
    def agents_without_ranks(self) -> list[ProcessRecord]:
        """Return the torchrun agents that did not start any ranks, oldest first."""
        agents = [p for p in self._ordered if p.start is not None and p.start.role == "agent"]
        return [process for process in agents if not process.rounds]

    @property
    def _ordered(self) -> list[ProcessRecord]:
        return sorted(self.processes.values(), key=lambda process: process.began)

    @property
    def lives(self) -> list[RankLife]:
        """Return the last lifetime of each rank in the pod.

        These are the ranks in each torchrun agent's last start, and the ranks that run without torchrun.
        """
        lives: list[RankLife] = []
        worker_ids: set[str] = set()
        for agent in self.agents:
            last_round = agent.rounds[-1]
            for pid, local, rank, world in last_round.workers:
                own = self._of_worker(agent, pid, local, last_round.restart)
                worker_ids |= {process.id for process in own}
                group = next((process.group for process in own if process.group), None)
                failures = [f for event in agent.failures for f in event.failures if f[0] == pid]
                lives.append(
                    RankLife(
                        self.pod,
                        group.rank if group else rank,
                        group.world if group else world,
                        "group" if group else "torchrun",
                        last_round.restart,
                        tuple(own),
                        agent,
                        (failures[-1][3], failures[-1][4]) if failures else None,
                        pid,
                    )
                )
        return lives + self._without_torchrun(worker_ids)

    def _of_worker(self, agent: ProcessRecord, pid: int, local: int, restart: int) -> list[ProcessRecord]:
        """Return the recorded process of a rank that torchrun started directly or through a wrapper.

        The list contains at most one process.
        """
        with_pid = [
            process for process in self._ordered if process.pid == pid and process.began >= agent.began
        ]
        if with_pid:
            return with_pid[-1:]
        return [
            process
            for process in self._ordered
            if process.start is not None
            and process.start.role == "python"
            and process.env("LOCAL_RANK") == local
            and (process.env("TORCHELASTIC_RESTART_COUNT") or 0) == restart
            and process.began >= agent.rounds[-1].time_ms
        ][:1]

    def _without_torchrun(self, in_rounds: set[str]) -> list[RankLife]:
        """Return the ranks that were started without torchrun.

        If some processes belong to a process group, all other processes are helpers, not ranks.
        """
        grouped = [p for p in self._outside_torchrun if p.group is not None and p.id not in in_rounds]
        rank_processes = grouped if in_rounds or self.agents or grouped else self.commands
        return [
            RankLife(
                self.pod,
                process.group.rank if process.group else process.env("RANK") or 0,
                process.group.world if process.group else 1,
                "group" if process.group else "",
                0,
                (process,),
                None,
                None,
                process.pid,
            )
            for process in rank_processes
        ]

    def last_with(self, pid: int) -> ProcessRecord | None:
        """Return the latest process that had this process id, or None."""
        return next((process for process in reversed(self._ordered) if process.pid == pid), None)

    @property
    def commands(self) -> list[ProcessRecord]:
        """Return the processes outside torchrun that were not started by another recorded process."""
        # The recorded process with the parent's pid can be younger than the child: if a shell calls exec for
        # its last command, the command has the shell's pid, but it did not start the shell's earlier child
        # processes.
        processes = self._outside_torchrun
        start_times = {process.pid: process.began for process in reversed(processes)}
        return [p for p in processes if p.start and start_times.get(p.start.ppid, p.began + 1) > p.began]

    @property
    def _outside_torchrun(self) -> list[ProcessRecord]:
        rounds = {pid for agent in self.agents for one in agent.rounds for pid, *_ in one.workers}
        return [
            process
            for process in self._ordered
            if process.start is not None
            and process.start.role != "agent"
            and process.pid not in rounds
            and not self._below(process, rounds)
        ]

    def _below(self, process: ProcessRecord, pids: set[int]) -> bool:
        """Return whether a process is a descendant of one of `pids`, based on the recorded parent pids."""
        parents = {p.pid: p.start.ppid for p in self._ordered if p.start}
        at, visited = process.start.ppid if process.start else 0, set[int]()
        while at and at not in visited:
            if at in pids:
                return True
            visited.add(at)
            at = parents.get(at, 0)
        return False


def pods(events: Iterable[tuple[int, ProcessLine]]) -> dict[str, PodProcesses]:
    """Group recorded events by pod and process.

    The keys are the pods' uids, or their names if the uid is not known.
    """
    by_pod: dict[str, PodProcesses] = {}
    for number, event in events:
        pod = by_pod.setdefault(event.uid or event.pod, PodProcesses(event.pod, {}))
        process = pod.processes.setdefault(event.id, ProcessRecord(event.id, line=number))
        _add(process, event, number)
    return by_pod


def _add(process: ProcessRecord, event: ProcessLine, number: int) -> None:
    if isinstance(event, ProcessStart):
        process.starts.append(event)
    elif isinstance(event, ProcessGroup):
        process.group = event
    elif isinstance(event, AgentWorkers):
        last = process.rounds[-1] if process.rounds else None
        if last is not None and last.restart == event.restart and not _same(last, event):
            event = event.model_copy(update={"workers": [*last.workers, *event.workers]})
            process.rounds[-1] = event
        else:
            process.rounds.append(event)
    elif isinstance(event, AgentFailure):
        process.failures.append(event)
    elif isinstance(event, RankStack):
        process.stacks.append((number, event))
    elif isinstance(event, AgentResult):
        process.result = event
    else:
        process.ends.append(event)


def _same(one: AgentWorkers, other: AgentWorkers) -> bool:
    """Return whether two events about an agent contain the same local rank.

    Such events belong to different starts of the agent's ranks.
    """
    return bool({local for _, local, *_ in one.workers} & {local for _, local, *_ in other.workers})


def of_nodes(events: Iterable[tuple[int, ProcessLine]], nodes: Mapping[int, Pod]) -> dict[int, PodProcesses]:
    """Map each node index to the recorded processes of its pod.

    Nodes without recorded processes are absent.
    """
    by_pod = pods(events)
    return {
        index: by_pod[key]
        for index, pod in nodes.items()
        for key in (pod.last.uid, pod.name)
        if key in by_pod
    }


@dataclass(frozen=True)
class World:
    """The ranks in one process group, and each rank's node index."""

    size: int
    nodes: dict[int, int]
    """The node index of each rank."""


def lives_from_ground_truth(
    starts: Mapping[int, list[TruthStart]], nodes: Mapping[str, int]
) -> dict[int, list[RankLife]]:
    """Map each node index to the last lifetimes of its ranks, for workers that write their own ground truth.

    `starts` maps each rank to its attempts' start records. `nodes` maps each pod name to its node index.
    """
    lives: dict[int, list[RankLife]] = {}
    for rank, of_rank in starts.items():
        last = of_rank[-1] if of_rank else None
        if last and last.world is not None and last.pod is not None and last.pod in nodes:
            life = RankLife(last.pod, rank, last.world, "torchrun", 0, (), None, None, last.pid or 0)
            lives.setdefault(nodes[last.pod], []).append(life)
    return lives


def fits(world: World | None, expected: Expected) -> bool:
    """Return whether `world` is not None and has the number of ranks in the job file.

    If the job file does not contain the number of ranks, a world of any size fits.
    """
    return world is not None and (not expected.ranks_given or world.size == expected.ranks)


def is_each(size: int, ranks: Collection[int]) -> bool:
    """Return whether `ranks` contains each of the ranks 0 to `size` - 1 exactly once."""
    return len(ranks) == size and set(ranks) == set(range(size))


def whole(lives: dict[int, list[RankLife]], num_nodes: int) -> World | None:
    """Return the world that spans all nodes, or None if the ranks do not form such a world.

    `lives` maps each node index to the lifetimes of its ranks. The world must contain each of its ranks
    exactly once, and at least one rank on each node. Ranks in other worlds, such as those of a second command
    on a node, are ignored.
    """
    sizes = {life.world for of_node in lives.values() for life in of_node}
    for size in sorted(sizes, reverse=True):
        ranks = {
            (life.rank, node) for node, of_node in lives.items() for life in of_node if life.world == size
        }
        world_nodes = {node for _, node in ranks}
        if is_each(size, [rank for rank, _ in ranks]) and len(world_nodes) == num_nodes:
            return World(size, dict(ranks))
    return None
