"""GPUs → nodes × processes: how many pods a job has, and how many ranks in each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.torchrun_controller.api.models import JobSpec


class Refused(Exception):
    """A job that cannot run as it is written. `reason` is the condition's."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Plan:
    """Equal pods, one for each node. `least` is below `nodes` for an elastic job alone."""

    nodes: int
    least: int
    gpus: int
    """For each node. 0 is a job on CPUs."""
    processes: int
    """For each node."""

    @property
    def elastic(self) -> bool:
        return self.least < self.nodes

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes


BestFit = Callable[[int], int | None]
"""GPUs → the number of equal pods that fit now; None where none does."""


def distribute(job: JobSpec, capacity: int, best_fit: BestFit = lambda _: None) -> Plan:
    """Return where the ranks go, with `capacity` GPUs on a whole node of the queue.

    What `best_fit` returns; else one node when the GPUs fit on it, or as few nodes as take equal shares.
    Raises Refused.
    """
    fixed = job.max_nodes or job.num_nodes
    gpus = job.num_gpus
    if gpus is None and capacity:
        gpus = capacity * (fixed or 1)  # numNodes, or nothing, asks for whole nodes
    if not gpus:
        nodes, share = fixed or 1, 0
    elif job.processes_per_node is not None:
        raise Refused(
            "ProcessesPerNode",
            f"processesPerNode is {job.processes_per_node}, but a job with GPUs has a process for each: "
            "leave it out, or set numGPUs: 0 for a job on CPUs",
        )
    elif not capacity:
        raise Refused(
            "NoGPUs",
            f"expected a queue whose nodes have GPUs for numGPUs: {gpus}; this one's have none: set its "
            "nodeResources.gpus, or numGPUs: 0 for a job on CPUs",
        )
    else:
        nodes = fixed or best_fit(gpus) or _fewest(gpus, capacity)
        share = _share(gpus, nodes, capacity)
    processes = share or job.processes_per_node or 1
    return Plan(nodes=nodes, least=job.min_nodes or nodes, gpus=share, processes=processes)


def _fewest(gpus: int, capacity: int) -> int:
    first = -(-gpus // capacity)
    return next(nodes for nodes in range(first, gpus + 1) if gpus % nodes == 0)


def _share(gpus: int, nodes: int, capacity: int) -> int:
    if gpus % nodes:
        raise Refused(
            "UnevenSplit",
            f"{gpus} GPUs do not split evenly over {nodes} nodes: expected a multiple of {nodes}, e.g. "
            f"{gpus + nodes - gpus % nodes}, or leave out numNodes",
        )
    if gpus // nodes > capacity:
        raise Refused(
            "TooManyGPUs",
            f"{gpus} GPUs on {nodes} nodes are {gpus // nodes} each, but a node of this queue has {capacity}"
            f": expected at least {-(-gpus // capacity)} nodes",
        )
    return gpus // nodes
