"""Judge a bundle's acceptance tests, using its manifest and pods to find the nodes that should report."""

from __future__ import annotations

from functools import lru_cache

from harness.evidence.io.reader import Bundle
from harness.evidence.kubernetes import gpu_nodes
from harness.evidence.kubernetes.objects import Pod, items
from harness.judge.acceptance.fleet import Fleet, fleet
from harness.judge.acceptance.pod_records import Member

FILE = "acceptance.jsonl"


@lru_cache(maxsize=2)
def of_bundle(bundle: Bundle) -> Fleet | None:
    """Return the verdict on the cluster, or None if no acceptance tests were recorded.

    The verdict is cached, because the report page and its JSON data use it several times.
    """
    return fleet(bundle.accepted(), members(bundle)) if bundle.has(FILE) else None


def members(bundle: Bundle) -> list[Member]:
    """Return the nodes that should report, each with its last pod.

    Each pod of a DaemonSet tests only its own node. For all other workload kinds, the pods form one
    torch.distributed world. A pod that was never scheduled counts as a node that did not report.
    """
    manifest = bundle.manifest
    if manifest is None or manifest.expected is None or manifest.launch is None:
        return []
    count = manifest.expected.num_nodes
    each = max(1, manifest.expected.ranks // max(1, count))
    alone = manifest.launch.kind == "DaemonSet"
    pods, shared = bundle.pods(), _shared(bundle) if manifest.expected.device == "cuda" else {}
    return [
        _member(
            index, pods.get(index), () if alone else tuple(range(index * each, (index + 1) * each)), shared
        )
        for index in sorted({*range(count), *pods})
    ]


def _shared(bundle: Bundle) -> dict[str, gpu_nodes.Parts]:
    """Map each node with shared or split GPUs, as shown by its labels and resources, to a description."""
    nodes = bundle.last("node").values()
    return {node.name: one for node in nodes if (one := gpu_nodes.parts(node.object)) is not None}


def _member(
    index: int, pod: Pod | None, ranks: tuple[int, ...], shared: dict[str, gpu_nodes.Parts]
) -> Member:
    if pod is None:
        return Member(f"no pod {index}", ranks=ranks)
    node = pod.node or f"no node of {pod.name}"
    return Member(node, pod.name, _restarts(pod), ranks, shared.get(node))


def _restarts(pod: Pod) -> int:
    """Return the highest restart count of the pod's containers.

    Each start of a container must produce a report.
    """
    counts = [status.get("restartCount") for status in items(pod.last.object, "status", "containerStatuses")]
    return max((count for count in counts if isinstance(count, int)), default=0)
