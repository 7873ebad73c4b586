"""A kind cluster of the harness's own, from its creation to its removal."""

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
from harness.provision.images.docker import image_id
from harness.provision.images.load import load_images
from harness.provision.kind import docker, power, storage
from harness.provision.kind.configuration import VOLUMES_MOUNT
from harness.provision.kind.install import Images, create_or_reuse, install, lacking, start, usable
from harness.provision.kind.nodes import KindNodes
from harness.provision.kind.template import Template


class KindCluster(KindNodes):
    """One kind cluster by name. Creating, installing and deleting hold its lock, one harness at a time."""

    owns_namespaces = True
    keeps_namespaces = True
    """Namespaces are deleted with the cluster.

    On a kept one the newest few stay, for users who want to look at them.
    """

    ephemeral_storage = "10Gi"
    """A node's disk is the machine's: one pod that fills it ends every launch, and Docker with them."""

    def owned(self) -> OwnedCluster:
        return self

    def provide_image(self, image: str, context: RunContext, *, everywhere: bool = False) -> None:
        """Load an image of the local Docker into the nodes that take pods, or all, as `kind load` does."""
        if image_id(image) is not None:
            load_images([image], self.nodes() if everywhere else self.pools(), context)

    @property
    def shared_folder(self) -> SharedFolder | None:
        """Return it, or None for a cluster that an earlier version made without one."""
        return SharedFolder(self.volumes, VOLUMES_MOUNT) if self.volumes.is_dir() else None

    def free_disk(self, namespace: str, progress: Progress) -> None:
        """Remove the launch's folder, and its ended pods that keep more than storage.KEEP_BYTES.

        A failure only says so. A cluster that is gone keeps nothing.
        """
        if self.state() is None:
            return
        try:
            self.remove_volumes(namespace)
            with reached():
                storage.remove_large(self.kube(), namespace, progress)
        except HarnessError as error:
            progress(f"could not see what the pods of {namespace} keep on disk: {error.message}")

    def template(self, context: RunContext) -> Template | None:
        """Return the template that the cluster would be started from. None: kind creates it."""
        return usable(self, Images.make(context), context)

    def lacks_template(self, context: RunContext) -> bool:
        """Return whether it could be started from a template, and there is none."""
        return lacking(self, Images.make(context), context)

    def ready(self, context: RecordedContext) -> Ready:
        """Provide images, kind, JobSet, Kueue, queues and tracker. What is there and proved is left as it is.

        Raises UsageError for a cluster that is not the harness's own.
        """
        writer = context.writer
        with self._alone(context.progress, f"waiting for another harness that works on cluster {self.name}"):
            with writer.stage("docker"):
                docker.daemon()
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
        """Create or reuse the cluster, and install everything.

        When that fails, a cluster created here is deleted.
        """
        writer = context.writer
        with ExitStack() as last:
            last.callback(writer.clean, "kind")
            with writer.stage("cluster"), reached():
                begun = create_or_reuse(self, images, context)
            try:
                kube = self.kube()
                kube.retried = writer.retry
                install(self, kube, images, context, begun)
            except BaseException:
                if begun is not None:  # one that was there stays, and can be asked itself
                    self.export_logs(writer.path / "kind")
                if begun is not None and not self.settings.keep_cluster:
                    context.progress(f"deleting cluster {self.name}")
                    self.delete()
                raise
        return kube

    # -- leave, remove ---------------------------------------------------------------------------------
    def removable(self, ready: Ready | None, owner: str) -> bool:
        """Return whether nobody wants it kept, and this run used it or began it."""
        state = self.state()
        if state is None or state.kept or self.settings.keep_cluster:
            return False
        return ready is not None or state.owner == owner

    def leave(self, context: RunContext, ready: Ready | None = None, owner: str = "") -> bool:
        """Release it. Remove it when it is removable and nobody else uses it."""
        if ready is not None:
            ready.use.release()
        if not self.removable(ready, owner):
            return False
        with self._alone(context.progress):
            if not self.removable(ready, owner):  # another one may have kept or removed it meanwhile
                return False
            if self.used():
                context.progress(f"cluster {self.name} stays: another harness uses it")
                return False
            context.progress(f"deleting cluster {self.name}")
            return self._delete_all()

    def down(self, progress: Progress) -> bool:
        """Remove it, also when it is used or kept. Return False when the harness made none of this name."""
        with self._alone(progress):
            if self.state() is None:
                return False
            used = "; a harness that uses it will fail" if self.used() else ""
            progress(f"deleting cluster {self.name}{used}")
            return self._delete_all()

    def _delete_all(self) -> bool:
        """Delete the cluster, and at last its lock files. The caller does nothing else under the lock."""
        deleted = self.delete()
        if deleted:
            for path in (self.users, self.lock):
                path.unlink(missing_ok=True)
        return deleted

    # -- stop, start -----------------------------------------------------------------------------------
    def paused(self) -> bool:
        """Return whether every node is there and none of them runs."""
        return power.paused(self)

    def pause(self, progress: Progress) -> bool:
        """Stop the nodes. Everything in the cluster stays. Return False when they were stopped already."""
        with self._alone(progress):
            return power.pause(self)

    def resume(self, progress: Progress) -> bool:
        """Start the nodes and wait until everything serves. Return False when it was not paused."""
        with self._alone(progress), reached():
            power.owned(self)
            return start(self, progress)

    @contextmanager
    def _alone(self, progress: Progress, waiting: str = "waiting for another harness") -> Iterator[None]:
        with locked(self.lock, lambda: progress(waiting)):
            yield
