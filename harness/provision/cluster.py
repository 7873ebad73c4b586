"""Define the interface to a cluster (`Cluster`), and the class for a cluster that passed its readiness checks
(`Ready`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.context import RecordedContext, RunContext
from harness.core.kubernetes import Kube
from harness.core.locks import LockHandle
from harness.core.progress import Progress
from harness.evidence.schema.bundle import Replaced
from harness.provision.images.build import ImageRef


@dataclass(frozen=True)
class SharedFolder:
    """A folder shared by this machine and all of a cluster's nodes."""

    local_path: Path
    on_nodes: str


class Cluster(Protocol):
    """The interface to a cluster that a run prepares, uses and releases.

    Only the `provision` package uses the implementations directly.
    """

    name: str
    context: str
    kubeconfig: Path
    dir: Path
    """The directory on this machine that contains the cluster's state and the launch locks."""

    @property
    def owns_namespaces(self) -> bool:
        """Return whether only this machine launches jobs on the cluster, so that it owns all launch
        namespaces."""

    @property
    def retains_namespaces(self) -> bool:
        """Return whether a launch's namespace is kept after the launch."""

    @property
    def ephemeral_storage(self) -> str | None:
        """Return the default ephemeral-storage limit of each container. None means no limit."""

    @property
    def shared_folder(self) -> SharedFolder | None:
        """Return the folder that the cluster's nodes share with this machine, or None if there is none."""

    def provide_image(self, image: str, context: RunContext, *, everywhere: bool = False) -> None:
        """Load an image from the local Docker daemon into the nodes of a cluster that the harness created.

        If the daemon does not have the image, nothing is loaded, and the nodes pull the image. If
        `everywhere` is true, the image is also loaded into nodes that accept no pods.
        """

    def free_disk(self, namespace: str, progress: Progress) -> None:
        """Delete a launch's shared folder, and its finished pods that use a lot of disk space.

        Call this only when the bundle already contains the evidence from the folder and the pods.
        """

    def deleted(self) -> str | None:
        """Return a message if the cluster has been deleted since it became ready, and otherwise None. Also
        returns None if this cannot be determined."""

    def stopped(self) -> str | None:
        """Return a message if the machine that runs the control plane is stopped, and otherwise None. Also
        returns None if this cannot be determined."""

    def kube(self) -> Kube:
        """Return a Kubernetes client for the cluster. Raises HarnessError (cause cluster.kubeconfig)."""

    def use(self) -> LockHandle:
        """Mark the cluster as in use.

        Until the returned lock is released, no other process removes the cluster.
        """

    def ready(self, context: RecordedContext) -> Ready:
        """Create, reuse or attach to the cluster, and return once it is ready.

        If this fails, the cause is recorded in the bundle. A cluster that could not be created completely is
        deleted, unless the user asked to keep it.
        """

    def removable(self, ready: Ready | None, owner: str) -> bool:
        """Return whether `leave` will remove the cluster once no process uses it anymore."""

    def leave(self, context: RunContext, ready: Ready | None = None, owner: str = "") -> bool:
        """Release the cluster, and return whether it was removed.

        The last process to release the cluster removes it, unless the user asked to keep it. If `ready` is
        None, this run never used the cluster, and removes it only if `owner` is the run that began to create
        it. This method can be called again after an interruption.
        """

    def owned(self) -> OwnedCluster:
        """Return this cluster as an OwnedCluster, whose nodes the harness can inspect, stop and start.

        Raises UsageError for a user's own cluster.
        """


class OwnedCluster(Cluster, Protocol):
    """A cluster that the harness created.

    The harness can inspect and stop its nodes, and load images into them.
    """

    def exists(self) -> bool:
        """Return whether the cluster has nodes, running or stopped."""

    def nodes(self) -> list[str]:
        """Return the names of the nodes, control plane first."""

    def keep(self) -> None:
        """Mark the cluster as kept, so that only `harness down` removes it."""

    def paused(self) -> bool:
        """Return whether the cluster has nodes and all of them are stopped."""

    def pause(self, progress: Progress) -> bool:
        """Stop all nodes and keep their contents. Return False if all nodes were already stopped."""

    def resume(self, progress: Progress) -> bool:
        """Start the nodes and wait until the cluster is ready. Return False if the cluster was not paused."""


@dataclass(frozen=True)
class Ready:
    """A cluster that passed its readiness checks, with the information that a launch needs."""

    cluster: Cluster
    kube: Kube
    worker: ImageRef
    schedulable_nodes: int
    versions: dict[str, str]
    use: LockHandle
    """A lock that keeps other processes from removing the cluster until `leave` is called or this process
    exits."""
    replaced: tuple[Replaced, ...] = ()
    """The packages that the user replaced with other versions (`--replace`)."""

    @property
    def kind(self) -> OwnedCluster:
        """Return the cluster as an OwnedCluster, whose nodes the harness can inspect, stop and start.

        Raises UsageError for the user's own cluster, whose nodes the harness must not disturb.
        """
        return self.cluster.owned()
