"""Events of processes as workers/recorder/process_events.py records them, for one pod after another."""

from __future__ import annotations

from typing import Any

import bundles

from harness.evidence.schema.processes import PROCESS_LINE, ProcessLine

START_MS = int(bundles.START.timestamp() * 1000)
TORCHRUN = ["/usr/bin/python3", "/usr/local/bin/torchrun"]


class PodEvents:
    """The events of one pod, each a millisecond after the one before it."""

    def __init__(self, job: bundles.Job, index: int, uid: str | None = None, time_ms: int = 0) -> None:
        self._job, self._pod, self._uid = job, job.pod_name(index), uid or f"pod-uid-{index}"
        self._time = START_MS + 10_000 + time_ms

    def add(self, kind: str, process: int, **fields: Any) -> None:
        self._time += 1
        event = {"kind": kind, "id": f"{self._uid}/{process}/1", "pod": self._pod, "uid": self._uid, **fields}
        record: ProcessLine = PROCESS_LINE.validate_python({"time_ms": self._time, **event})
        self._job.processes.append(record)

    def start(
        self, pid: int, role: str, *, ppid: int = 1, argv: list[str] | None = None, **env: object
    ) -> None:
        given = {name: str(value) for name, value in env.items()}
        self.add("start", pid, pid=pid, ppid=ppid, host="h", role=role, argv=argv or ["python3"], env=given)

    def agent(self, pid: int, *options: str, script: str = "train.py") -> None:
        self.start(pid, "agent", argv=[*TORCHRUN, *options, script])

    def workers(
        self, pid: int, workers: list[tuple[int, int, int, int]], nodes: int = 2, restart: int = 0
    ) -> None:
        fields = {"restart": restart, "max_restarts": 3, "group_rank": 0, "nodes": nodes, "run_id": "1"}
        self.add("workers", pid, workers=workers, **fields)

    def rank(
        self, pid: int, rank: int, world: int, *, local: int = 0, ppid: int = 7, group: bool = True
    ) -> None:
        self.start(pid, "rank", ppid=ppid, RANK=rank, LOCAL_RANK=local, WORLD_SIZE=world)
        if group:
            self.add("group", pid, rank=rank, world=world)

    def torchrun(
        self,
        rank: int,
        *,
        group: bool = True,
        how: str = "exit",
        open_: int = 0,
        options: tuple[str, ...] = ("--nnodes=2",),
    ) -> None:
        """Record a torchrun that met another one, and its only rank of a world of two, which ended with 0."""
        self.agent(7, *options)
        self.workers(7, [(20, 0, rank, 2)])
        self.rank(20, rank, 2, group=group)
        self.end(20, how=how, open_=open_)
        self.result(7)

    def end(
        self,
        pid: int,
        code: int | None = 0,
        how: str = "exit",
        error: str = "",
        open_: int = 0,
        gpu: bool | None = None,
    ) -> None:
        self.add("end", pid, how=how, code=code, error=error, open=open_, gpu=gpu)

    def result(self, pid: int, state: str = "SUCCEEDED", error: str = "") -> None:
        self.add("result", pid, state=state, error=error)


def recorded(job: bundles.Job) -> bundles.Job:
    """Say in the job's manifest that processes are recorded, and record none."""
    launch = job.manifest.launch
    assert launch is not None
    job.manifest = job.manifest.model_copy(
        update={"launch": launch.model_copy(update={"processes": True, "recorder": True})}
    )
    return job


def together(job: bundles.Job, order: list[int] | None = None) -> bundles.Job:
    """Record that torchrun started all ranks in one world, and that each ended well.

    `order` are the group ranks of the nodes, where torchrun did not keep the nodes' order.
    """
    recorded(job)
    for index in range(job.nodes):
        pod = PodEvents(job, index)
        pod.agent(7, f"--nnodes={job.nodes}")
        first = (order[index] if order else index) * job.per_node
        pids = range(20, 20 + job.per_node)
        pod.workers(7, [(pid, n, first + n, job.ranks) for n, pid in enumerate(pids)], job.nodes)
        for n, pid in enumerate(pids):
            pod.rank(pid, first + n, job.ranks, local=n)
        for pid in pids:
            pod.end(pid)
        pod.result(7)
        pod.end(7)
    return job
