"""The GPUs that are free on nodes now: which split of a job fits, and who holds the rest.

A snapshot of what watches keep. The scheduler decides by what is there when it looks, so a split that fits
here may not fit there: it is an answer for now, never a reservation.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from decimal import Decimal

from harness.core.kubernetes import Object, condition
from harness.evidence.kubernetes.unschedulable import in_words, kept_away, quantity, requests
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.models import QueueSpec, Scheduling

GPU = "nvidia.com/gpu"
_ALL = Decimal(2**62)
"""More than any node has."""
MAX_NODES = 64
"""Splits into more pods are not looked for."""


@dataclass(frozen=True)
class Free:
    """What pods may still request on one node."""

    node: str
    gpus: int
    cpus: Decimal
    memory: Decimal
    """Bytes."""


@dataclass(frozen=True)
class Capacity:
    """Nodes, and the pods that have one and have not ended."""

    nodes: list[Object]
    pods: list[Object]

    def free(self, queue: QueueSpec, scheduling: Scheduling) -> list[Free]:
        """Return what is free on each node whose labels and taints let a job of the queue onto it."""
        used: dict[str, dict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
        for pod in self.pods:
            for name, amount in requests(pod).items():
                used[pod["spec"]["nodeName"]][name] += amount
        found = []
        for node in _eligible(self.nodes, queue, scheduling):
            name, has = node["metadata"]["name"], node["status"].get("allocatable") or {}
            left = {kind: quantity(has.get(kind, 0)) - used[name][kind] for kind in (GPU, "cpu", "memory")}
            found.append(Free(name, max(int(left[GPU]), 0), left["cpu"], left["memory"]))
        return sorted(found, key=lambda free: (-free.gpus, free.node))

    def holders(self, nodes: list[str]) -> list[tuple[str, int]]:
        """Return who holds GPUs of these nodes, and how many: a job, or a pod of none. The largest first."""
        held: dict[str, int] = defaultdict(int)
        for pod in self.pods:
            gpus = int(requests(pod).get(GPU, 0))
            if gpus and pod["spec"]["nodeName"] in nodes:
                held[_owner(pod)] += gpus
        return sorted(held.items(), key=lambda item: (-item[1], item[0]))


def _eligible(nodes: list[Object], queue: QueueSpec, scheduling: Scheduling) -> list[Object]:
    template = queue.pod_template.spec
    affinity = scheduling.affinity or queue.scheduling.affinity or template.get("affinity")
    asked = {
        "nodeSelector": {
            **(template.get("nodeSelector") or {}),
            **queue.scheduling.node_selector,
            **scheduling.node_selector,
        },
        "tolerations": [
            *(template.get("tolerations") or []),
            *(scheduling.tolerations or queue.scheduling.tolerations),
        ],
        **({"affinity": affinity} if affinity else {}),
    }
    return [
        node
        for node in nodes
        if not node["spec"].get("unschedulable")
        and condition(node, "Ready").get("status") == "True"
        and not kept_away({"spec": asked}, node)
    ]


def _owner(pod: Object) -> str:
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    for label, kind in ((names.JOB_LABEL, "TorchrunJob"), (names.JOBSET_LABEL, "JobSet")):
        if label in labels:
            return f"{kind} {metadata['namespace']}/{labels[label]}"
    return f"pod {metadata['namespace']}/{metadata['name']}"


def fitting(free: list[Free], queue: QueueSpec, whole: int, share: int) -> int:
    """Return how many pods of `share` GPUs fit now. `whole`: the GPUs of a whole node of the queue."""
    part = Decimal(share) / Decimal(whole)
    cpus = quantity(queue.node_resources.cpus or 0) * part
    memory = quantity(queue.node_resources.memory or 0) * part
    total = 0
    for node in free:
        pods = node.gpus // share
        for left, each in ((node.cpus, cpus), (node.memory, memory)):
            pods = min(pods, int(left // each)) if each else pods
        total += max(pods, 0)
    return total


def best_fit(gpus: int, free: list[Free], queue: QueueSpec, whole: int) -> int | None:
    """Return the smallest number of equal pods that fit now with `gpus` GPUs together, or None."""
    for pods in range(-(-gpus // whole), min(gpus, MAX_NODES) + 1):
        if gpus % pods == 0 and fitting(free, queue, whole, gpus // pods) >= pods:
            return pods
    return None


def explained(
    capacity: Capacity, queue: QueueSpec, scheduling: Scheduling, *, whole: int, pods: int, share: int
) -> str:
    """Return what is free for a waiting job of `pods` times `share` GPUs, what would fit, and who holds the
    rest.
    """
    free = capacity.free(queue, scheduling)
    total = sum(node.gpus for node in free)
    some = [f"{node.gpus} on {node.node}" for node in free if node.gpus]
    said = f"{total} GPUs are free on this queue's nodes now" + (f" ({in_words(some)})" if some else "")
    if fitting(free, queue, whole, share) >= pods:
        said += f", and its {pods} x {share} would fit"
    elif (split := best_fit(pods * share, free, queue, whole)) is not None:
        said += (
            f"; {split} x {pods * share // split} would fit: submit a job with numNodes {split}, or set the "
            "queue's distribution to BestFit"
        )
    else:
        said += f"; no equal split of {pods * share} GPUs fits"
        if best_fit(pods * share, [replace(node, cpus=_ALL, memory=_ALL) for node in free], queue, whole):
            said += ", because the CPUs or the memory that its pods ask for are not free beside them"
    holders = capacity.holders([node.node for node in free])
    if holders:
        held = [f"{who} ({count})" for who, count in holders]
        said += f"; {sum(count for _, count in holders)} are held by {in_words(held, 'holders')}"
    return said
