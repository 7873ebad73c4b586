"""Launch a DaemonSet as a workload: one pod on each node that accepts the pod."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from harness.core.errors import UsageError
from harness.core.kubernetes import Kube, Object
from harness.evidence.kubernetes import kinds
from harness.evidence.kubernetes.unschedulable import accepts
from harness.launch.labels import QUEUE_LABEL
from harness.launch.workloads.pod_template_workload import PlainWorkload


class DaemonSetWorkload(PlainWorkload):
    """A DaemonSet. Its containers keep running after their command ends, because the kubelet would otherwise
    restart them."""

    kind: ClassVar[str] = "DaemonSet"
    keep_alive: ClassVar[bool] = True
    spreads: ClassVar[bool] = True
    watched_kind: ClassVar[kinds.WatchedKind] = kinds.DAEMONSET

    def members(self, kube: Kube, /) -> int:
        """Return the number of nodes that accept the DaemonSet's pods. Raises UsageError if it is 0."""
        nodes: list[Object] = kube.objects("v1", "Node")
        count = sum(accepts(self.template, node) for node in nodes)
        if count == 0:
            raise UsageError(
                f"manifest {self.source}: none of the {len(nodes)} nodes in the cluster accepts a pod of "
                f"DaemonSet {self.name}",
                hint="compare the DaemonSet's nodeSelector and tolerations with `kubectl describe nodes`",
            )
        return count

    def mistakes(self) -> Iterable[str]:
        if self.queue:
            yield (
                f"metadata.labels: Kueue does not manage a DaemonSet, so {QUEUE_LABEL} has no effect; "
                "remove this label, or use a StatefulSet or an Indexed Job"
            )
