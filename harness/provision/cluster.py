"""The interface of every cluster that a launch can use, and the description of one that is ready."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.context import RecordedContext, RunContext
from harness.core.kubernetes import Kube
from harness.core.locks import Hold
from harness.core.progress import Progress
from harness.provision.images.build import ImageRef


@dataclass(frozen=True)
class SharedFolder:
    """A folder that all nodes of a cluster share with this machine."""

    here: Path
    on_nodes: str


class Cluster(Protocol):
    """A cluster that is made ready, used and left. Only `provision` knows which implementation it is."""

    name: str
    context: str
    kubeconfig: Path
    dir: Path
    """What this machine's harnesses know of it: state, locks of launches."""

    @property
    def owns_namespaces(self) -> bool:
        """Return whether every launch there, and so every namespace, is of this machine's harnesses."""

    @property
    def keeps_namespaces(self) -> bool:
        """Return whether the namespace of a launch stays when the launch is over."""

    @property
    def ephemeral_storage(self) -> str | None:
        """Return what each container may write to its node's disk where the user sets no limit. None: all."""

    @property
    def shared_folder(self) -> SharedFolder | None:
        """Return the folder that all its nodes share with this machine, or None where there is none."""

    def provide_image(self, image: str, context: RunContext, *, everywhere: bool = False) -> None:
        """Bring an image that only this machine has to the nodes, where they are ours. It is no error when
        this machine has none of that name: the nodes then pull it. `everywhere`: nodes that take no pods too.
        """

    def free_disk(self, namespace: str, progress: Progress) -> None:
        """Remove what a launch keeps of a disk of ours: its shared folder, and ended pods that keep much.

        Their evidence must be safe.
        """

    def deleted(self) -> str | None:
        """Return that somebody deleted the cluster since it was ready, or None where that is not known."""

    def kube(self) -> Kube:
        """Return a client. Raises HarnessError, cause cluster.kubeconfig."""

    def use(self) -> Hold:
        """Mark the cluster as used. Until the hold is released, nobody else removes it as unused."""

    def ready(self, context: RecordedContext) -> Ready:
        """Create, reuse or attach the cluster, and return when it serves.

        A failure is recorded in the writer's stages with its cause. A cluster that this call began is then
        deleted, unless it is to be kept.
        """

    def removable(self, ready: Ready | None, owner: str) -> bool:
        """Return whether `leave` is to remove the cluster once nobody uses it."""

    def leave(self, context: RunContext, ready: Ready | None = None, owner: str = "") -> bool:
        """Release the cluster. The last user removes it, unless somebody wants it kept. Return False when it
        stays.

        Without `ready`, the cluster never came to be used: only the run that began it (`owner`) removes it.
        It may be called again after an interruption.
        """

    def owned(self) -> OwnedCluster:
        """Return the same cluster with access to its nodes.

        Raises UsageError for a cluster of the user's own.
        """


class OwnedCluster(Cluster, Protocol):
    """A cluster that the harness made. Its nodes may be inspected, stopped and filled with images."""

    def exists(self) -> bool:
        """Return whether it has nodes, stopped ones too."""

    def nodes(self) -> list[str]:
        """Return the names of the nodes, control plane first."""

    def keep(self) -> None:
        """Keep the cluster: from now on only `harness down` removes it."""

    def paused(self) -> bool:
        """Return whether every node is there and none of them runs."""

    def pause(self, progress: Progress) -> bool:
        """Stop every node. Everything in the cluster stays. Return False when they were stopped already."""

    def resume(self, progress: Progress) -> bool:
        """Start the nodes and wait until everything serves again. Return False when it was not paused."""


@dataclass(frozen=True)
class Ready:
    """A cluster that was proved to serve, with what a launch needs to know of it."""

    cluster: Cluster
    kube: Kube
    worker: ImageRef
    schedulable_nodes: int
    versions: dict[str, str]
    use: Hold
    """Until `leave`, or until this process ends, nobody else removes the cluster as unused."""

    @property
    def kind(self) -> OwnedCluster:
        """Return the cluster with access to its nodes.

        Raises UsageError for the user's own cluster, because whatever needs this would disturb it.
        """
        return self.cluster.owned()
