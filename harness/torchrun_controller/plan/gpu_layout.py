"""Compute the layout of a job from its GPUs: the number of pods, and the number of ranks per pod."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.torchrun_controller.api.models import JobSpec


class Refused(Exception):
    """Raised if a job cannot run with its spec. `reason` becomes the reason of the job's status condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Plan:
    """The layout of a job: equal pods, one per node.

    `least` is the minimum number of nodes, which is less than `nodes` for an elastic job.
    """

    nodes: int
    least: int
    gpus: int
    """The number of GPUs per node. 0 means that the job uses only CPUs."""
    processes: int
    """The number of processes (ranks) per node."""

    @property
    def elastic(self) -> bool:
        return self.least < self.nodes

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes


BestFit = Callable[[int], int | None]
"""A function that takes a number of GPUs and returns the number of equal pods in which they fit, or None."""


def distribute(job: JobSpec, capacity: int, best_fit: BestFit = lambda _: None) -> Plan:
    """Return the layout of a job on nodes with `capacity` GPUs each.

    If the spec does not set the number of nodes, `best_fit` chooses the number of pods. If `best_fit` returns
    None, the job uses the fewest nodes with equal shares. Raises Refused if there is no such layout.
    """
    fixed_nodes = job.max_nodes or job.num_nodes
    gpus = job.num_gpus
    if gpus is None and capacity:
        gpus = capacity * (fixed_nodes or 1)  # Without numGPUs, a job uses whole nodes.
    if not gpus:
        nodes, share = fixed_nodes or 1, 0
    elif job.processes_per_node is not None:
        raise Refused(
            "ProcessesPerNode",
            f"processesPerNode is {job.processes_per_node}, but a job with GPUs runs one process per GPU: "
            "leave it out, or set numGPUs: 0 for a job on CPUs",
        )
    elif not capacity:
        raise Refused(
            "NoGPUs",
            f"numGPUs is {gpus}, but the queue's nodes have no GPUs: set the queue's nodeResources.gpus, "
            "or numGPUs: 0 for a job on CPUs",
        )
    else:
        nodes = fixed_nodes or best_fit(gpus) or _fewest(gpus, capacity)
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
