"""Measure the disk usage of pods on their kind nodes: container files, logs and emptyDirs.

A finished pod uses this space until it is deleted, and Kubernetes does not report how much space that is.
Therefore each node is queried: containerd reports the size of each container's files, and `du` the sizes of
logs and emptyDirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from harness.core import processes
from harness.core.errors import ToolError
from harness.core.kubernetes import Kube, Object
from harness.core.progress import Progress

KEEP_BYTES = 2**30
"""The disk space, in bytes, above which a finished pod is deleted once the bundle contains its evidence."""
SECONDS = 60
_USAGE_SCRIPT = """
ctr --namespace k8s.io snapshots usage -b
cd /var/lib/kubelet/pods && du -sbx -- */volumes/kubernetes.io~empty-dir 2>/dev/null
cd /var/log/pods && du -sbx -- * 2>/dev/null
true
"""


@dataclass(frozen=True)
class PodDisk:
    """The disk usage of a pod on its node, in bytes."""

    node: str
    namespace: str
    name: str
    ended: bool
    bytes: int


def pods(kube: Kube, namespace: str | None = None) -> list[PodDisk]:
    """Return each pod's disk usage, largest first. Pods on nodes that do not respond are omitted."""
    placed = [pod for pod in kube.objects("v1", "Pod", namespace) if pod["spec"].get("nodeName")]
    nodes = sorted({pod["spec"]["nodeName"] for pod in placed})
    if not nodes:
        return []
    with ThreadPoolExecutor(len(nodes)) as pool:
        usage = dict(zip(nodes, pool.map(_written, nodes), strict=True))
    result = [
        _pod_disk(pod, usage[pod["spec"]["nodeName"]]) for pod in placed if usage[pod["spec"]["nodeName"]]
    ]
    return sorted(result, key=lambda pod: -pod.bytes)


def remove_large(kube: Kube, namespace: str, progress: Progress) -> None:
    """Delete a launch's finished pods that use more than KEEP_BYTES of disk space.

    Call this only when the bundle already contains the evidence from the pods.
    """
    for pod in pods(kube, namespace):
        if pod.ended and pod.bytes > KEEP_BYTES:
            kube.delete("v1", "Pod", pod.name, namespace)
            size = f"{pod.bytes / 2**30:.1f} GiB on node {pod.node}"
            progress(
                f"deleted pod {pod.name}, which had ended and used {size}; its evidence is in the bundle"
            )


def _written(node: str) -> dict[str, int]:
    """Return the disk usage of pods on a node, in bytes.

    The size of a container's files is keyed by container id. The sizes of logs and emptyDirs are keyed by pod
    UID. The result is empty if the node does not respond.
    """
    try:
        return sizes(
            processes.run(
                ["docker", "exec", node, "bash", "-c", _USAGE_SCRIPT], timeout=SECONDS
            ).stdout.splitlines()
        )
    except ToolError:
        return {}


def sizes(lines: Iterable[str]) -> dict[str, int]:
    """Parse a node's output, and return sizes in bytes, summed by container id and by pod UID.

    Lines are "<container id> <bytes> <inodes>" from containerd and "<bytes> <path>" from `du`. The path is
    "<uid>/volumes/…" for emptyDirs and "<namespace>_<name>_<uid>" for logs.
    """
    result: dict[str, int] = {}
    for words in map(str.split, lines):
        if len(words) == 3 and words[1].isdecimal():
            result[words[0]] = int(words[1])
        elif len(words) == 2 and words[0].isdecimal():
            uid = words[1].partition("/")[0].rpartition("_")[2]
            result[uid] = result.get(uid, 0) + int(words[0])
    return result


def _pod_disk(pod: Object, usage: dict[str, int]) -> PodDisk:
    status, metadata = pod["status"], pod["metadata"]
    statuses = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    ids = {str(one.get("containerID", "")).rpartition("/")[2] for one in statuses}
    return PodDisk(
        node=pod["spec"]["nodeName"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        ended=status.get("phase") in ("Succeeded", "Failed"),
        bytes=sum(usage.get(key, 0) for key in ids) + usage.get(metadata["uid"], 0),
    )
