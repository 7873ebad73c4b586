"""Choose the cluster for a run, make it ready, and release it afterwards."""

from __future__ import annotations

from harness.context import RecordedContext
from harness.provision.cluster import Cluster, Ready
from harness.provision.existing import ExistingCluster
from harness.provision.kind.cluster import KindCluster
from harness.settings import Settings


def cluster_of(settings: Settings) -> Cluster:
    """Return the user's own cluster if a kubeconfig is set, and otherwise the harness's kind cluster.

    Raises UsageError if the kubeconfig cannot be used.
    """
    return KindCluster(settings) if settings.kubeconfig is None else ExistingCluster(settings)


class ClusterUse:
    """A run's use of a cluster. `up` makes it ready, and `leave` or `leave_recorded` ends the use.

    The last run that leaves a cluster removes it, unless the cluster is to be kept.
    """

    def __init__(self, cluster: Cluster, context: RecordedContext) -> None:
        self._cluster = cluster
        self._context = context
        self._ready: Ready | None = None

    def up(self) -> Ready:
        """Return a ready cluster, and mark it as in use. Raises the same errors as `Cluster.ready`."""
        self._ready = self._cluster.ready(self._context)
        return self._ready

    def leave(self) -> None:
        """Leave the cluster without recording a stage.

        After a first Ctrl-C during the deletion, the deletion continues. Only a second Ctrl-C stops it.

        If the cluster cannot be deleted, its state file is kept, so that `harness down` finds the cluster.
        """
        try:
            self._leave()
        except KeyboardInterrupt:
            self._context.progress("the cluster is being deleted; interrupt again to stop the deletion")
            self._leave()

    def leave_recorded(self) -> None:
        """Leave the cluster, and record its deletion as a stage.

        If the deletion fails, a progress message reports the error, and no error is raised.
        """
        if not self._cluster.removable(self._ready, self._context.nonce):
            self._leave()
            return
        name, writer = self._cluster.name, self._context.writer
        text = f"cluster {name} still exists: remove it with `harness down --cluster-name {name}`"
        try:
            with writer.stage("delete cluster"):
                self.leave()
        except KeyboardInterrupt as error:
            writer.update(interrupted=writer.current.interrupted or str(error) or "SIGINT")
            self._context.progress(text)
        except Exception as error:
            self._context.progress(f"{text} ({error})")

    def _leave(self) -> None:
        self._cluster.leave(self._context, self._ready, self._context.nonce)
