"""A cluster that was proved to serve: of the harness's own, or somebody's."""

from __future__ import annotations

from dataclasses import dataclass

from harness.cluster.existing import ExistingCluster
from harness.cluster.kind import KindCluster
from harness.errors import UsageError
from harness.images.build import ImageRef
from harness.kube import Kube
from harness.locked import Hold


@dataclass(frozen=True)
class Ready:
    """What a launch needs to know of it."""

    cluster: KindCluster | ExistingCluster
    kube: Kube
    worker: ImageRef
    schedulable_nodes: int
    versions: dict[str, str]
    created: bool
    """By this call."""
    use: Hold
    """Until `leave`, or until this process ends, nobody else removes the cluster as no longer used."""

    @property
    def kind(self) -> KindCluster:
        """Raises UsageError for somebody's own cluster: what needs this would disturb it."""
        if isinstance(self.cluster, KindCluster):
            return self.cluster
        raise UsageError(
            "this needs a kind cluster of the harness's own", hint="leave out --kubeconfig and --context"
        )
