"""Which ranks ran in which pod, the world that each believed in, and how each ended: from processes.jsonl.

A rank's world is what torch.distributed gave it when it was initialised. Without that it is what torchrun's
rendezvous gave it. A process with neither trains in a world of one.
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
)

PATH = "processes.jsonl"


@dataclass
class ProcessRecord:
    """What is known of one process. A process that became another program has two starts and two ends."""

    id: str
    starts: list[ProcessStart] = field(default_factory=list)
    group: ProcessGroup | None = None
    rounds: list[AgentWorkers] = field(default_factory=list)
    """Each time that this process, an agent, started its ranks. Parts of one time are joined."""
    failures: list[AgentFailure] = field(default_factory=list)
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
        """Return when it first recorded anything, in milliseconds since the epoch."""
        known = [*self.starts, *self.rounds, *self.ends, *([self.group] if self.group else [])]
        return min((event.time_ms for event in known), default=0)

    @property
    def pid(self) -> int:
        text = self.id.split("/")[1] if self.id.count("/") == 2 else ""
        return int(text) if text.isdecimal() else 0

    @property
    def end(self) -> ProcessEnd | None:
        """Return its end, or None where it did not say: it may have become another program, or was killed."""
        last = self.ends[-1] if self.ends else None
        return last if last is not None and last.how != "exec" else None

    @property
    def last_ms(self) -> int:
        """Return when it recorded anything last, in milliseconds since the epoch."""
        told = [*self.rounds, *self.failures, *self.ends, *([self.result] if self.result else [])]
        return max((event.time_ms for event in told), default=self.began)

    @property
    def argv(self) -> list[str]:
        return self.start.argv if self.start else []

    def env(self, name: str) -> int | None:
        """Return a number from its environment."""
        text = self.start.env.get(name, "") if self.start else ""
        return int(text) if text.isdecimal() else None


@dataclass(frozen=True)
class RankLife:
    """One life of one rank: a process that torchrun started, or one that trains without torchrun."""

    pod: str
    rank: int
    world: int
    by: str
    """"group", "torchrun", or "" for a process that nobody told of other ranks."""
    restart: int
    processes: tuple[ProcessRecord, ...]
    """The processes that recorded themselves as this rank."""
    agent: ProcessRecord | None
    failure: tuple[int, str] | None
    """What torchrun said of its failure: exit code or minus the signal, and message."""
    pid: int

    @property
    def ends(self) -> list[ProcessEnd]:
        return [end for process in self.processes if (end := process.end) is not None]

    @property
    def ref(self) -> str:
        known = self.processes[0] if self.processes else self.agent
        return known.ref if known else PATH


@dataclass(frozen=True)
class PodProcesses:
    """The processes of one pod."""

    pod: str
    processes: dict[str, ProcessRecord]

    @property
    def agents(self) -> list[ProcessRecord]:
        """Return torchrun's agents that started ranks, oldest first."""
        return [process for process in self._ordered if process.rounds]

    @property
    def agents_without_ranks(self) -> list[ProcessRecord]:
        """Return torchrun's agents that started no rank, oldest first."""
        found = [p for p in self._ordered if p.start is not None and p.start.role == "agent"]
        return [process for process in found if not process.rounds]

    @property
    def _ordered(self) -> list[ProcessRecord]:
        return sorted(self.processes.values(), key=lambda process: process.began)

    @property
    def lives(self) -> list[RankLife]:
        """Return the last life of each rank that ran here: those of the last round of each torchrun."""
        found: list[RankLife] = []
        taken: set[str] = set()
        for agent in self.agents:
            last = agent.rounds[-1]
            for pid, local, rank, world in last.workers:
                own = self._of_worker(agent, pid, local, last.restart)
                taken |= {process.id for process in own}
                group = next((process.group for process in own if process.group), None)
                failed = [f for event in agent.failures for f in event.failures if f[0] == pid]
                found.append(
                    RankLife(
                        self.pod,
                        group.rank if group else rank,
                        group.world if group else world,
                        "group" if group else "torchrun",
                        last.restart,
                        tuple(own),
                        agent,
                        (failed[-1][3], failed[-1][4]) if failed else None,
                        pid,
                    )
                )
        return found + self._without_torchrun(taken)

    def _of_worker(self, agent: ProcessRecord, pid: int, local: int, restart: int) -> list[ProcessRecord]:
        """Return the process of a rank: the one that torchrun started, or the one that a wrapper started."""
        here = [process for process in self._ordered if process.pid == pid and process.began >= agent.began]
        if here:
            return here[-1:]
        return [
            process
            for process in self._ordered
            if process.start is not None
            and process.start.role == "python"
            and process.env("LOCAL_RANK") == local
            and (process.env("TORCHELASTIC_RESTART_COUNT") or 0) == restart
            and process.began >= agent.rounds[-1].time_ms
        ][:1]

    def _without_torchrun(self, taken: set[str]) -> list[RankLife]:
        """Return the ranks that no torchrun started.

        Where some of the pod's processes are ranks of a group, the others are their helpers.
        """
        grouped = [p for p in self._outside_torchrun if p.group is not None and p.id not in taken]
        others = grouped if taken or self.agents or grouped else self.commands
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
            for process in others
        ]

    def last_with(self, pid: int) -> ProcessRecord | None:
        """Return the latest process with a process id, or None."""
        return next((process for process in reversed(self._ordered) if process.pid == pid), None)

    @property
    def commands(self) -> list[ProcessRecord]:
        """Return the processes outside torchrun that no other recorded process started."""
        # A shell's last command may take the shell's place, and so be no parent of what ran before.
        others = self._outside_torchrun
        began = {process.pid: process.began for process in reversed(others)}
        return [p for p in others if p.start and began.get(p.start.ppid, p.began + 1) > p.began]

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
        """Return whether a process is a child of one of these, as far as parents are recorded."""
        parents = {p.pid: p.start.ppid for p in self._ordered if p.start}
        at, seen = process.start.ppid if process.start else 0, set[int]()
        while at and at not in seen:
            if at in pids:
                return True
            seen.add(at)
            at = parents.get(at, 0)
        return False


def pods(events: Iterable[tuple[int, ProcessLine]]) -> dict[str, PodProcesses]:
    """Map the name of each pod, with its uid where two pods have one name, to its processes."""
    found: dict[str, PodProcesses] = {}
    for number, event in events:
        pod = found.setdefault(event.uid or event.pod, PodProcesses(event.pod, {}))
        process = pod.processes.setdefault(event.id, ProcessRecord(event.id, line=number))
        _add(process, event)
    return found


def _add(process: ProcessRecord, event: ProcessLine) -> None:
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
    elif isinstance(event, AgentResult):
        process.result = event
    else:
        process.ends.append(event)


def _same(one: AgentWorkers, other: AgentWorkers) -> bool:
    """Return whether two starts of ranks are of different times: they share a local rank."""
    return bool({local for _, local, *_ in one.workers} & {local for _, local, *_ in other.workers})


def of_nodes(events: Iterable[tuple[int, ProcessLine]], nodes: Mapping[int, Pod]) -> dict[int, PodProcesses]:
    """Map the index of each node to the processes of its pod, as far as they were recorded."""
    found = pods(events)
    return {
        index: found[key] for index, pod in nodes.items() for key in (pod.last.uid, pod.name) if key in found
    }


@dataclass(frozen=True)
class World:
    """The ranks that met: `size` of them, and the node of the job that each ran on."""

    size: int
    nodes: dict[int, int]
    """Rank → index of its node."""


def told_by_workers(
    starts: Mapping[int, list[TruthStart]], nodes: Mapping[str, int]
) -> dict[int, list[RankLife]]:
    """Map each node index to what workers that record by themselves say of their ranks.

    `starts` are the starts of each rank's own record, `nodes` the node index of each pod's name.
    """
    found: dict[int, list[RankLife]] = {}
    for rank, of_rank in starts.items():
        last = of_rank[-1] if of_rank else None
        if last and last.world is not None and last.pod is not None and last.pod in nodes:
            life = RankLife(last.pod, rank, last.world, "torchrun", 0, (), None, None, last.pid or 0)
            found.setdefault(nodes[last.pod], []).append(life)
    return found


def fits(world: World | None, expected: Expected) -> bool:
    """Return whether there is one world, and it has the job's size where the job's file gives one."""
    return world is not None and (not expected.ranks_given or world.size == expected.ranks)


def is_each(size: int, ranks: Collection[int]) -> bool:
    """Return whether each rank of a world is there once. A process may record any size."""
    return len(ranks) == size and set(ranks) == set(range(size))


def whole(lives: dict[int, list[RankLife]], num_nodes: int) -> World | None:
    """Return the one world that spans all nodes, or None where the ranks do not prove one.

    `lives` are those of each node. The sizes must agree, each rank must be on exactly one node, and each node
    must hold some. Ranks of further programs on a node, in worlds of their own, do not count.
    """
    sizes = {life.world for of_node in lives.values() for life in of_node}
    for size in sorted(sizes, reverse=True):
        ranks = {
            (life.rank, node) for node, of_node in lives.items() for life in of_node if life.world == size
        }
        there = {node for _, node in ranks}
        if is_each(size, [rank for rank, _ in ranks]) and len(there) == num_nodes:
            return World(size, dict(ranks))
    return None
