"""A cluster that was proved to serve: of the harness's own, or somebody's."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.errors import UsageError
from harness.core.kubernetes import Kube
from harness.core.locks import Hold
from harness.provision.existing import ExistingCluster
from harness.provision.images.build import ImageRef
from harness.provision.kind.kind import KindCluster


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
