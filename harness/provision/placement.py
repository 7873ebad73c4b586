"""Find the nodes on which a workload's pods can run, before the launch creates anything.

The checks match the scheduler's filters for labels, node affinity, taints, tolerations and cordons. Free
resources are not checked, because other pods can end and free their resources.
"""

from __future__ import annotations

from typing import Protocol

from harness.core.errors import HarnessError
from harness.core.kubernetes import Kube, Object
from harness.evidence.kubernetes.objects import items, mapping
from harness.evidence.kubernetes.unschedulable import by_reason, exclusions
from harness.settings import Settings

HINT = (
    "add a toleration for the taint, or select other nodes, in the --pod file (accept, train, netcheck), in "
    "the manifest's pod template, or in HARNESS_KONDUKTOR_CONFIG (konduktor jobs)"
)
_NOT_READY = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}


class Placed(Protocol):
    """The properties of a workload that determine on which nodes its pods can run."""

    @property
    def name(self) -> str:
        """Return the workload's name in its job file."""

    @property
    def kind(self) -> str:
        """Return the kind of the launched object."""

    @property
    def queue(self) -> str | None:
        """Return the name of the workload's LocalQueue, or None if it has none."""

    def placed(self, settings: Settings, /) -> Object:
        """Return a pod with the fields that determine its placement: node selector, affinity and
        tolerations."""


def require_node(kube: Kube, workload: Placed, settings: Settings) -> list[str]:
    """Return the names of the nodes on which the workload's pods can run, even if the nodes are full.

    Raises HarnessError (cause scheduling.unschedulable) if there are none. For a workload with a queue, no
    error is raised, because Kueue's ResourceFlavors can add tolerations.
    """
    obstacles = _obstacles(kube, workload, settings)
    if workload.queue is None and obstacles and all(obstacles.values()):
        raise HarnessError(
            f"no node takes a pod of {workload.kind} {workload.name}: {by_reason(obstacles.items())}",
            hint=HINT,
            cause="scheduling.unschedulable",
        )
    return [name for name, reasons in obstacles.items() if not reasons]


def _obstacles(kube: Kube, workload: Placed, settings: Settings) -> dict[str, list[str]]:
    pod = workload.placed(settings)
    daemon = workload.kind == "DaemonSet"
    return {
        str(node["metadata"]["name"]): [*exclusions(pod, node), *([] if daemon else _closed(node))]
        for node in kube.objects("v1", "Node")
    }


def _closed(node: Object) -> list[str]:
    """Return the reasons why a node accepts only the pods of DaemonSets, such as "is cordoned"."""
    keys = {str(taint.get("key")) for taint in items(node, "spec", "taints")}
    cordoned = ["is cordoned"] if mapping(node, "spec").get("unschedulable") else []
    return [*cordoned, *(["is not ready"] if keys & _NOT_READY else [])]
