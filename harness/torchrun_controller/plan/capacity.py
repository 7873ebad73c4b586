"""Find the nodes' free GPUs, the job layouts that fit on them, and the jobs that use the other GPUs.

The data is a snapshot of the watch caches and does not reserve resources. A layout that fits now might not
fit when the pods are scheduled.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from decimal import Decimal

from harness.core.kubernetes import Object, condition
from harness.evidence.kubernetes.unschedulable import exclusions, in_words, quantity, requests
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.models import QueueSpec, Scheduling

GPU = "nvidia.com/gpu"
_ALL = Decimal(2**62)
"""A number that exceeds both the number of CPUs and the memory in bytes of any node."""
MAX_NODES = 64
"""The maximum number of pods that `best_fit` considers."""


@dataclass(frozen=True)
class Free:
    """The resources of one node that are not requested by any pod."""

    node: str
    gpus: int
    cpus: Decimal
    memory: Decimal
    """The free memory in bytes."""


@dataclass(frozen=True)
class Capacity:
    """All nodes of the cluster, and all pods that are scheduled and have not ended."""

    nodes: list[Object]
    pods: list[Object]

    def free(self, queue: QueueSpec, scheduling: Scheduling) -> list[Free]:
        """Return the free resources on the nodes whose labels and taints permit the queue's jobs.

        The nodes are sorted by free GPUs, in descending order.
        """
        used_resources: dict[str, dict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
        for pod in self.pods:
            for name, amount in requests(pod).items():
                used_resources[pod["spec"]["nodeName"]][name] += amount
        nodes = []
        for node in _eligible(self.nodes, queue, scheduling):
            name, total = node["metadata"]["name"], node["status"].get("allocatable") or {}
            remaining = {
                kind: quantity(total.get(kind, 0)) - used_resources[name][kind]
                for kind in (GPU, "cpu", "memory")
            }
            nodes.append(Free(name, max(int(remaining[GPU]), 0), remaining["cpu"], remaining["memory"]))
        return sorted(nodes, key=lambda free: (-free.gpus, free.node))

    def holders(self, nodes: list[str]) -> list[tuple[str, int]]:
        """Return the users of GPUs on the given nodes, each with its number of GPUs, in descending order.

        A user is a job, or a pod that does not belong to a job.
        """
        gpus_of: dict[str, int] = defaultdict(int)
        for pod in self.pods:
            gpus = int(requests(pod).get(GPU, 0))
            if gpus and pod["spec"]["nodeName"] in nodes:
                gpus_of[_owner(pod)] += gpus
        return sorted(gpus_of.items(), key=lambda item: (-item[1], item[0]))


def _eligible(nodes: list[Object], queue: QueueSpec, scheduling: Scheduling) -> list[Object]:
    template = queue.pod_template.spec
    affinity = scheduling.affinity or queue.scheduling.affinity or template.get("affinity")
    pod_spec = {
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
        and not exclusions({"spec": pod_spec}, node)
    ]


def _owner(pod: Object) -> str:
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    for label, kind in ((names.JOB_LABEL, "TorchrunJob"), (names.JOBSET_LABEL, "JobSet")):
        if label in labels:
            return f"{kind} {metadata['namespace']}/{labels[label]}"
    return f"pod {metadata['namespace']}/{metadata['name']}"


def fitting(free: list[Free], queue: QueueSpec, node_gpus: int, share: int) -> int:
    """Return how many pods with `share` GPUs each fit on the nodes.

    `node_gpus` is the total number of GPUs on a node.
    """
    part = Decimal(share) / Decimal(node_gpus)
    cpus = quantity(queue.node_resources.cpus or 0) * part
    memory = quantity(queue.node_resources.memory or 0) * part
    total = 0
    for node in free:
        pods = node.gpus // share
        for available, needed in ((node.cpus, cpus), (node.memory, memory)):
            pods = min(pods, int(available // needed)) if needed else pods
        total += max(pods, 0)
    return total


def best_fit(gpus: int, free: list[Free], queue: QueueSpec, node_gpus: int) -> int | None:
    """Return the smallest number of equal pods that have `gpus` GPUs in total and fit on the nodes.

    Returns None if there is no such number.
    """
    for pods in range(-(-gpus // node_gpus), min(gpus, MAX_NODES) + 1):
        if gpus % pods == 0 and fitting(free, queue, node_gpus, gpus // pods) >= pods:
            return pods
    return None


def explained(
    capacity: Capacity, queue: QueueSpec, scheduling: Scheduling, *, whole: int, pods: int, share: int
) -> str:
    """Return a sentence for a job that waits for `pods` pods with `share` GPUs each.

    The sentence reports the free GPUs, a layout that would fit, and the users of the other GPUs.
    """
    free = capacity.free(queue, scheduling)
    total = sum(node.gpus for node in free)
    free_texts = [f"{node.gpus} on {node.node}" for node in free if node.gpus]
    text = f"{total} GPUs are free on this queue's nodes now" + (
        f" ({in_words(free_texts)})" if free_texts else ""
    )
    if fitting(free, queue, whole, share) >= pods:
        text += f", and the job's {pods} x {share} GPUs would fit"
    elif (split := best_fit(pods * share, free, queue, whole)) is not None:
        text += (
            f"; {split} x {pods * share // split} GPUs would fit: submit a job with numNodes {split}, "
            "or set the "
            "queue's distribution to BestFit"
        )
    else:
        text += f"; no equal split of {pods * share} GPUs fits"
        if best_fit(pods * share, [replace(node, cpus=_ALL, memory=_ALL) for node in free], queue, whole):
            text += ", because there are not enough free CPUs or memory on the nodes with free GPUs"
    holders = capacity.holders([node.node for node in free])
    if holders:
        names_of_holders = [f"{holder} ({count})" for holder, count in holders]
        text += f"; {sum(count for _, count in holders)} are held by {in_words(names_of_holders, 'holders')}"
    return text
