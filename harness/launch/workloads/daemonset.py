"""A DaemonSet: one pod on each node that takes it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from harness.core.errors import UsageError
from harness.core.kubernetes import Kube, Object
from harness.evidence.kubernetes import kinds
from harness.evidence.kubernetes.unschedulable import accepts
from harness.launch.names import QUEUE_LABEL
from harness.launch.workloads.plain import PlainWorkload


class DaemonSetWorkload(PlainWorkload):
    """Its controller restarts what ends, so its containers are held when their command has ended."""

    kind: ClassVar[str] = "DaemonSet"
    held: ClassVar[bool] = True
    spreads: ClassVar[bool] = True
    watched_kind: ClassVar[kinds.WatchedKind] = kinds.DAEMONSET

    def members(self, kube: Kube, /) -> int:
        """Return how many nodes its labels and tolerations fit. Raises UsageError when there is none."""
        nodes: list[Object] = kube.objects("v1", "Node")
        count = sum(accepts(self.template, node) for node in nodes)
        if count == 0:
            raise UsageError(
                f"manifest {self.source}: none of {len(nodes)} nodes takes a pod of DaemonSet {self.name}",
                hint="see its nodeSelector and tolerations, and `kubectl describe nodes`",
            )
        return count

    def mistakes(self) -> Iterable[str]:
        if self.queue:
            yield (
                f"metadata.labels: Kueue does not manage a DaemonSet, so {QUEUE_LABEL} would do nothing; "
                "remove it, or use a StatefulSet or an Indexed Job"
            )
