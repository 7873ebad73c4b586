"""What every cluster can do for a launch, whoever made it; and what a cluster that is ready is known by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.context import RecordedContext, RunContext
from harness.core.kubernetes import Kube
from harness.core.locks import Hold
from harness.core.progress import Progress
from harness.provision.images.build import ImageRef


class Cluster(Protocol):
    """Made ready, used, left. Nothing outside of `provision` asks which implementation it is."""

    name: str
    context: str
    kubeconfig: Path
    dir: Path
    """What this machine's harnesses know of it: state, locks of launches."""

    @property
    def owns_namespaces(self) -> bool:
        """Whether every launch there is of this machine's harnesses, so that none is somebody else's."""

    @property
    def keeps_namespaces(self) -> bool:
        """Whether the namespace of a launch stays when the launch is over."""

    def kube(self) -> Kube:
        """A client. Raises HarnessError, cause cluster.kubeconfig."""

    def use(self) -> Hold:
        """Until it is released, nobody else removes the cluster as no longer used."""

    def ready(self, context: RecordedContext) -> Ready:
        """Create, reuse or attach; returns when the cluster serves.

        What fails is in the writer's stages with its cause. A cluster that this call began is deleted then,
        unless it is to be kept.
        """

    def removable(self, ready: Ready | None, owner: str) -> bool:
        """Whether `leave` is to remove the cluster once nobody uses it."""

    def leave(self, context: RunContext, ready: Ready | None = None, owner: str = "") -> bool:
        """Release the cluster. The last one that used it removes it, unless somebody wants it kept.

        Without `ready`, the cluster never came to be used: only the run that began it (`owner`) removes it.
        False when it stays. May be called again after an interruption.
        """

    def owned(self) -> OwnedCluster:
        """The same cluster with what needs nodes of the harness's own. Raises UsageError for somebody's."""


class OwnedCluster(Cluster, Protocol):
    """A cluster that the harness made: its nodes may be looked into, stopped and filled with images."""

    def exists(self) -> bool:
        """Whether it has nodes, stopped ones too."""

    def nodes(self) -> list[str]:
        """Names of the nodes, control plane first."""

    def keep(self) -> None:
        """From now on only `harness down` removes it."""

    def paused(self) -> bool:
        """Whether every node is there and none of them runs."""

    def pause(self, progress: Progress) -> bool:
        """Stop every node; everything in the cluster stays. False when they were stopped already."""

    def resume(self, progress: Progress) -> bool:
        """Start the nodes and wait until everything serves again. False when it was not paused."""


@dataclass(frozen=True)
class Ready:
    """A cluster that was proved to serve: what a launch needs to know of it."""

    cluster: Cluster
    kube: Kube
    worker: ImageRef
    schedulable_nodes: int
    versions: dict[str, str]
    use: Hold
    """Until `leave`, or until this process ends, nobody else removes the cluster as no longer used."""

    @property
    def kind(self) -> OwnedCluster:
        """Raises UsageError for somebody's own cluster: what needs this would disturb it."""
        return self.cluster.owned()
