"""Determine how many GPUs each acceptance pod requests. Reject nodes that cannot be tested together.

A DaemonSet has one pod template, so all its pods request the same number of the same resource.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.core.errors import UsageError
from harness.core.kubernetes import Object
from harness.evidence.kubernetes import gpu_nodes
from harness.evidence.kubernetes.gpu_nodes import GPU, SHARED
from harness.evidence.kubernetes.unschedulable import by_reason

_OTHERS = "test these nodes separately, by selecting them with --selector LABEL=VALUE"


@dataclass(frozen=True)
class Request:
    """The name of the GPU resource that each pod requests, and the number of GPUs."""

    resource: str
    count: int
    whole: bool
    """Whether the labels of all nodes prove that their GPUs are not shared."""


def of(nodes: Sequence[Object], requested: int | None) -> Request:
    """Return each pod's GPU request. `requested` is the user's number, or None for all GPUs on a node.

    If GPUs are shared, each pod requests only one, because a pod that requests two may get the same GPU
    twice.

    Raises UsageError with the names of the nodes if nodes cannot be tested, or cannot be tested together.
    """
    parts = {_name(node): gpu_nodes.parts(node) for node in nodes}
    if split := [(name, [one.text]) for name, one in parts.items() if one and one.cause == "gpu.mig"]:
        raise UsageError(
            f"only whole GPUs can be tested, but {by_reason(split)}",
            hint=f"disable MIG on these nodes (nvidia-smi -mig 0), or {_OTHERS}",
        )
    shared = [(name, [one.text]) for name, one in parts.items() if one]
    if not shared:
        all_whole = all(map(gpu_nodes.proved_whole, nodes))
        return Request(GPU, requested or _equal(nodes), all_whole)
    if (requested or 1) > 1:
        raise UsageError(
            f"expected {requested} whole GPUs per pod, but {by_reason(shared)}: a pod that requests several "
            "shared GPUs can get the same GPU twice, or is rejected",
            hint="use --gpus-per-pod 1 to test one GPU of each node, or disable sharing to test all of them",
        )
    if len(shared) < len(nodes) and requested is None:
        raise UsageError(
            f"all GPUs of each node can be tested only if they are not shared, but {by_reason(shared)}",
            hint="exclude these nodes, for example with --selector nvidia.com/gpu.sharing-strategy=none, "
            "or test one GPU of each node with --gpus-per-pod 1",
        )
    resources = {_name(node): _resource(node) for node in nodes}
    if len(set(resources.values())) > 1:
        each = [(name, [f"offers its GPUs as {resource}"]) for name, resource in resources.items()]
        raise UsageError(
            f"the nodes offer their GPUs under different resource names: {by_reason(each)}", hint=_OTHERS
        )
    return Request(next(iter(resources.values())), 1, whole=False)


def no_gpus(nodes: Iterable[Object], selector: object) -> UsageError:
    """Return the error for a cluster in which no selected node has NVIDIA GPUs."""
    other_nodes = [
        (_name(node), [f"has {', '.join(f'{count} {name}' for name, count in sorted(resources.items()))}"])
        for node in nodes
        if (resources := gpu_nodes.gpu_resources(node))
    ]
    scope = f" among those with the labels {selector}" if selector else ""
    return UsageError(
        f"expected a node with {GPU}, but there is none{scope}"
        + (f": {by_reason(other_nodes)}" if other_nodes else ""),
        hint="check the labels and capacity with `kubectl describe nodes`, or test nodes without GPUs with "
        "--device cpu",
    )


def gpus_of(node: Object) -> int:
    """Return the number of GPUs on a node, including broken GPUs, or 0 if it is not known.

    After a restart, a device plugin no longer counts a broken GPU, but the node's label might still count it.
    """
    capacity = gpu_nodes.offered(node, GPU, part="capacity")
    labelled = str((node["metadata"].get("labels") or {}).get(f"{GPU}.count", ""))
    return max(capacity, int(labelled) if labelled.isdecimal() and len(labelled) < 6 else 0)


def _equal(nodes: Sequence[Object]) -> int:
    """Return the number of GPUs per node, or 1 if it is not known for any node.

    Raises UsageError if two nodes have different numbers of GPUs.
    """
    counts = {_name(node): gpus_of(node) for node in nodes}
    gpu_counts = {count for count in counts.values() if count}
    if len(gpu_counts) > 1:
        reasons = by_reason((name, [f"has {count}"]) for name, count in sorted(counts.items()) if count)
        raise UsageError(
            f"the nodes have different numbers of GPUs: {reasons}",
            hint="select nodes with the same number of GPUs with --selector LABEL=VALUE, or use "
            "--gpus-per-pod 1",
        )
    return max(gpu_counts, default=1)


def _resource(node: Object) -> str:
    return SHARED if gpu_nodes.offered(node, SHARED, part="capacity") else GPU


def _name(node: Object) -> str:
    return str(node["metadata"]["name"])
