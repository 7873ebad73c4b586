"""Manage a kind cluster that the harness owns, from its creation to its removal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from harness.context import RecordedContext, RunContext
from harness.core.errors import HarnessError
from harness.core.kubernetes import Kube, reached
from harness.core.locks import locked
from harness.core.progress import Progress
from harness.provision.cluster import OwnedCluster, Ready, SharedFolder
from harness.provision.controllers import queues
from harness.provision.images.docker_images import image_id
from harness.provision.images.load import load_images
from harness.provision.kind import docker_check, pause_resume, pod_disk_use
from harness.provision.kind.configuration import VOLUMES_MOUNT
from harness.provision.kind.install import Images, create_or_reuse, install, lacking, start, usable
from harness.provision.kind.nodes import KindNodes
from harness.provision.kind.template import Template


class KindCluster(KindNodes):
    """A kind cluster, identified by name. A lock prevents concurrent creation, installation and deletion."""

    owns_namespaces = True
    retains_namespaces = True
    """`owns_namespaces` and `retains_namespaces` are true, because only this machine launches on the cluster,
    and namespaces are deleted with the cluster. On a kept cluster, the newest namespaces are kept for
    inspection."""

    ephemeral_storage = "10Gi"
    """The default ephemeral-storage limit of each container. Nodes use this machine's disk, so a pod that
    filled it would stop Docker and all launches."""

    def owned(self) -> OwnedCluster:
        return self

    def provide_image(self, image: str, context: RunContext, *, everywhere: bool = False) -> None:
        """Load a local image into the nodes that accept pods, or into all nodes if `everywhere` is true."""
        if image_id(image) is not None:
            load_images([image], self.nodes() if everywhere else self.pools(), context)

    @property
    def shared_folder(self) -> SharedFolder | None:
        """Return the folder that the nodes share with this machine, or None if an earlier version of the
        harness created the cluster without this folder."""
        return SharedFolder(self.volumes, VOLUMES_MOUNT) if self.volumes.is_dir() else None

    def free_disk(self, namespace: str, progress: Progress) -> None:
        """Remove the launch's shared folder, and its finished pods that use more than
        pod_disk_use.KEEP_BYTES.

        If this fails, a progress message reports the reason, and no error is raised. If the cluster has been
        deleted, nothing is done.
        """
        if self.state() is None:
            return
        try:
            self.remove_volumes(namespace)
            with reached():
                pod_disk_use.remove_large(self.kube(), namespace, progress)
        except HarnessError as error:
            progress(f"could not measure the disk usage of the pods in {namespace}: {error.message}")

    def template(self, context: RunContext) -> Template | None:
        """Return the template from which the cluster would be created, or None if kind would create it."""
        return usable(self, Images.make(context), context)

    def lacks_template(self, context: RunContext) -> bool:
        """Return true if the cluster could be created from a template, but a usable template does not exist
        yet."""
        return lacking(self, Images.make(context), context)

    def ready(self, context: RecordedContext) -> Ready:
        """Return the ready cluster. Missing nodes, images and components are created or installed.

        Raises UsageError for a cluster that the harness did not create.
        """
        writer = context.writer
        with self._exclusive(
            context.progress, f"waiting for another harness process that is changing cluster {self.name}"
        ):
            with writer.stage("docker"):
                docker_check.daemon()
            with writer.stage("cluster name"):
                self.refuse_foreign()
            with writer.stage("images"):
                images = Images.make(context)
            kube = self._filled(images, context)
            if self.settings.keep_cluster:
                self.keep()
            with reached():
                nodes = queues.schedulable_nodes(kube)
            self.used_from_now_on()
            return Ready(
                cluster=self,
                kube=kube,
                worker=images.worker,
                schedulable_nodes=nodes,
                versions=images.versions(),
                use=self.use(),
            )

    def _filled(self, images: Images, context: RecordedContext) -> Kube:
        """Create or reuse the cluster, and install its components.

        If this fails, a newly created cluster is deleted.
        """
        writer = context.writer
        with ExitStack() as last:
            last.callback(writer.clean, "kind")
            with writer.stage("cluster"), reached():
                completed_steps = create_or_reuse(self, images, context)
            try:
                kube = self.kube()
                kube.on_retry = writer.retry
                install(self, kube, images, context, completed_steps)
            except BaseException:
                if completed_steps is not None:  # A reused cluster is not deleted and can be inspected.
                    self.export_logs(writer.path / "kind")
                if completed_steps is not None and not self.settings.keep_cluster:
                    context.progress(f"deleting cluster {self.name}")
                    self.delete()
                raise
        return kube

    # -- release and remove the cluster ----------------------------------------------------------------
    def removable(self, ready: Ready | None, owner: str) -> bool:
        """Return whether `leave` may remove the cluster.

        Returns False if the cluster is marked as kept. Otherwise, returns whether this run used the cluster
        or began to create it.
        """
        state = self.state()
        if state is None or state.kept or self.settings.keep_cluster:
            return False
        return ready is not None or state.owner == owner

    def leave(self, context: RunContext, ready: Ready | None = None, owner: str = "") -> bool:
        """Release the cluster.

        The cluster is removed if `removable` returns true and no other process uses the cluster. Return
        whether it was removed.
        """
        if ready is not None:
            ready.use.release()
        if not self.removable(ready, owner):
            return False
        with self._exclusive(context.progress):
            if not self.removable(ready, owner):  # Another process removed the cluster or marked it as kept.
                return False
            if self.used():
                context.progress(f"cluster {self.name} is kept, because another harness process uses it")
                return False
            context.progress(f"deleting cluster {self.name}")
            return self._delete_all()

    def down(self, progress: Progress) -> bool:
        """Remove the cluster, even if it is in use or marked as kept.

        Return False if the harness created no cluster with this name.
        """
        with self._exclusive(progress):
            if self.state() is None:
                return False
            warning = "; other harness processes that use it will fail" if self.used() else ""
            progress(f"deleting cluster {self.name}{warning}")
            return self._delete_all()

    def _delete_all(self) -> bool:
        """Delete the cluster, and then its lock files.

        The caller must hold the lock. It must not change the cluster afterwards, because the lock file no
        longer exists.
        """
        deleted = self.delete()
        if deleted:
            for path in (self.users, self.lock):
                path.unlink(missing_ok=True)
        return deleted

    # -- stop and start the nodes ----------------------------------------------------------------------
    def paused(self) -> bool:
        """Return whether the cluster has nodes and all of them are stopped."""
        return pause_resume.paused(self)

    def pause(self, progress: Progress) -> bool:
        """Stop all nodes and keep their contents. Return False if all were already stopped."""
        with self._exclusive(progress):
            return pause_resume.pause(self)

    def resume(self, progress: Progress) -> bool:
        """Start the nodes and wait until the cluster is ready. Return False if the cluster was not paused."""
        with self._exclusive(progress), reached():
            pause_resume.owned(self)
            return start(self, progress)

    @contextmanager
    def _exclusive(self, progress: Progress, waiting: str = "waiting for another harness") -> Iterator[None]:
        with locked(self.lock, lambda: progress(waiting)):
            yield
