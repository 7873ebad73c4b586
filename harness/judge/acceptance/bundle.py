"""Judge the acceptance tests of a bundle: who should have answered is known from the cluster."""

from __future__ import annotations

from functools import lru_cache

from harness.evidence.io.reader import Bundle
from harness.evidence.kubernetes.objects import Pod, items
from harness.judge.acceptance.fleet import Fleet, fleet
from harness.judge.acceptance.pods import Member

FILE = "acceptance.jsonl"


@lru_cache(maxsize=2)
def of_bundle(bundle: Bundle) -> Fleet | None:
    """Return the verdict of the cluster, or None where no acceptance tests were recorded.

    It is kept for the bundle: the page, its tests and its JSON all ask for it.
    """
    return fleet(bundle.accepted(), members(bundle)) if bundle.has(FILE) else None


def members(bundle: Bundle) -> list[Member]:
    """Return the nodes that should answer, with their last pods.

    The pods of a DaemonSet test their nodes one by one. The pods of every other kind make one world.
    A pod that never had a node counts as a node that did not answer.
    """
    manifest = bundle.manifest
    if manifest is None or manifest.expected is None or manifest.launch is None:
        return []
    count = manifest.expected.num_nodes
    each = max(1, manifest.expected.ranks // max(1, count))
    alone = manifest.launch.kind == "DaemonSet"
    pods = bundle.pods()
    return [
        _member(index, pods.get(index), () if alone else tuple(range(index * each, (index + 1) * each)))
        for index in sorted({*range(count), *pods})
    ]


def _member(index: int, pod: Pod | None, ranks: tuple[int, ...]) -> Member:
    if pod is None:
        return Member(f"no pod {index}", ranks=ranks)
    return Member(pod.node or f"no node of {pod.name}", pod.name, _restarts(pod), ranks)


def _restarts(pod: Pod) -> int:
    """Return how often its containers were started again. Each start must have reported."""
    counts = [status.get("restartCount") for status in items(pod.last.object, "status", "containerStatuses")]
    return max((count for count in counts if isinstance(count, int)), default=0)
