"""Use an existing cluster, selected with --kubeconfig and --context.

The harness never creates or deletes such a cluster. Before a launch, it checks that the cluster meets the
requirements, and installs nothing unless requested. On this machine, it stores only its locks for the
cluster and a discovery cache, in <state>/existing/.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

from kubernetes import client

from harness.context import RecordedContext, RunContext
from harness.core.errors import HarnessError, UsageError
from harness.core.kubeconfig import context_of
from harness.core.kubernetes import Kube, applied_by_us, reached
from harness.core.locks import LockHandle, acquire
from harness.core.progress import Progress
from harness.provision.cluster import OwnedCluster, Ready
from harness.provision.controllers import install as controllers
from harness.provision.controllers import queues, tracker
from harness.provision.controllers.readiness import CONTROLLERS
from harness.provision.controllers.webhooks import check_serving
from harness.provision.images.build import ImageRef
from harness.provision.images.stack import resolve
from harness.provision.konduktor import konduktor_version
from harness.provision.preflight import JobProperties, Requirement, missing, requirements
from harness.settings import Settings

HINT = "run `harness preflight` to see all requirements; --install installs the missing components"


class ExistingCluster:
    """A cluster that the harness did not create.

    A launch on this cluster reports missing requirements and installs nothing.
    """

    owns_namespaces = False
    """Always false, because other machines may also launch on the cluster. A namespace without a lock on this
    machine may belong to one of them."""
    ephemeral_storage = None
    """Always None, because limits are up to the cluster's administrators."""
    shared_folder = None
    """Always None, because this machine and the nodes do not share a folder. Users can set --storage-class or
    --claims-namespace instead."""

    def __init__(self, settings: Settings) -> None:
        """Read the kubeconfig. Raises UsageError if the file or its context does not exist."""
        if settings.kubeconfig is None:
            raise UsageError("a kubeconfig is expected", hint="--kubeconfig FILE --context NAME")
        self.settings = settings
        self.kubeconfig: Path = settings.kubeconfig.absolute()
        self.context = context_of(self.kubeconfig, settings.context)
        self.name = self.context
        digest = hashlib.sha256(f"{self.kubeconfig}\0{self.context}".encode()).hexdigest()[:12]
        self.dir = settings.state_dir / "existing" / digest

    @property
    def retains_namespaces(self) -> bool:
        """Return whether the user wants to keep the launches' namespaces on this cluster."""
        return self.settings.keep_cluster

    def deleted(self) -> None:
        """Return None, because the cluster may still exist even if its API server does not respond."""

    def stopped(self) -> None:
        """Return None, because the harness cannot inspect the control plane's machine."""

    def kube(self) -> Kube:
        """Return a Kubernetes client for the cluster. Raises HarnessError (cause cluster.kubeconfig)."""
        return Kube(self.kubeconfig, self.context, self.dir / "discovery.json")

    def provide_image(self, image: str, context: RunContext, *, everywhere: bool = False) -> None:
        """Do nothing, because the nodes pull images themselves."""

    def free_disk(self, namespace: str, progress: Progress) -> None:
        """Do nothing, because the launch's namespace is deleted with its pods after the launch."""

    def use(self) -> LockHandle:
        """Mark the cluster as in use until the returned lock is released.

        The harness never removes a user's cluster.
        """
        return acquire(self.dir / "users", shared=True)

    def removable(self, ready: Ready | None, owner: str) -> bool:
        """Return False, because the harness never removes a user's cluster."""
        del ready, owner
        return False

    def leave(self, context: RunContext, ready: Ready | None = None, owner: str = "") -> bool:
        """Release the cluster. Return False, because the harness never removes a user's cluster."""
        del context, owner
        if ready is not None:
            ready.use.release()
        return False

    def owned(self) -> OwnedCluster:
        """Raise UsageError, because access to the nodes would disturb the user's cluster."""
        raise UsageError(
            "this command works only on a kind cluster that the harness created",
            hint="omit --kubeconfig and --context",
        )

    def ready(self, context: RecordedContext) -> Ready:
        """Check the launch requirements, and return the cluster without changing it.

        If requirements are missing, raises one HarnessError that lists all of them. The error's cause is the
        cause of the first missing requirement.
        """
        writer, progress = context.writer, context.progress
        with writer.stage("cluster"), reached():
            kube = self.kube()
            kube.on_retry = writer.retry
            if kube.proxy is not None:
                writer.redactor.add(kube.proxy.password)
            version = _version(kube)
            progress(f"using cluster {self.name} with Kubernetes {version}")
        with writer.stage("preflight"), reached():
            needs = requirements(kube, self.settings)
            for requirement in needs:
                progress(f"{requirement.what}: {requirement.state}")
            self._refuse_lacks(needs)
            check_serving(kube)
            nodes = queues.schedulable_nodes(kube)
        controller_versions = {each.what: each.state for each in needs if each.what in ("jobset", "kueue")}
        return Ready(
            cluster=self,
            kube=kube,
            worker=ImageRef(self.settings.worker_image or "", ""),
            schedulable_nodes=nodes,
            versions={
                **controller_versions,
                "kubernetes": version,
                "konduktor": konduktor_version(),
                "images": "registry",
            },
            use=self.use(),
        )

    def _refuse_lacks(self, needs: list[Requirement]) -> None:
        """Raise HarnessError for missing requirements.

        A missing image is not an error here, because the job file can name another image.
        """
        lacks = [requirement for requirement in missing(needs) if requirement.what != "image"]
        if lacks:
            text = "; ".join(f"{requirement.what}: {requirement.state}" for requirement in lacks)
            problem = lacks[0].problem
            assert problem is not None
            raise HarnessError(f"cluster {self.name} lacks: {text}", hint=HINT, cause=problem.cause)

    def inspect(self, job: JobProperties | None = None) -> tuple[str, list[Requirement]]:
        """Return the Kubernetes version and the launch requirements.

        Changes nothing in the cluster, except that a dry run of a pod creates a temporary namespace.
        """
        with reached():
            kube = self.kube()
            return _version(kube), requirements(kube, self.settings, job, pods=True)

    def install(self, context: RunContext) -> None:
        """Install JobSet, Kueue, the queue and the tracker if they are missing.

        Existing objects are not changed.
        """
        settings, progress = self.settings, context.progress
        with reached():
            kube = self.kube()
            lacks = {requirement.what for requirement in missing(requirements(kube, settings))}
            _refuse_foreign(kube, lacks, settings.cluster_queue == queues.CLUSTER_QUEUE)
            if lacks & CONTROLLERS.keys():
                stack = resolve(context)
                if stack.image_source != "registry":
                    raise UsageError(
                        "JobSet and Kueue can only be installed if container registries can be reached",
                        hint="set HARNESS_IMAGES=registry, or install JobSet and Kueue yourself",
                    )
                manifests = {"jobset": stack.jobset_manifest, "kueue": stack.kueue_manifest}
                controllers.install(
                    kube, [manifests[name] for name in CONTROLLERS if name in lacks], progress
                )
            if lacks & {"queue", "kueue"} and settings.cluster_queue == queues.CLUSTER_QUEUE:
                progress(f"queue: {queues.install(kube)}")
            if "tracker" in lacks and settings.tracker == "embedded":
                if settings.tracker_image is None:
                    raise UsageError(
                        "the embedded tracker needs an image that the cluster's nodes can pull",
                        hint="push harness/tracker to a registry and set HARNESS_TRACKER_IMAGE to the "
                        "pushed image, "
                        "or use --tracker hosted",
                    )
                tracker.install(kube, settings.tracker_image)
                progress("tracker: serving")


def _refuse_foreign(kube: Kube, lacks: Collection[str], queue: bool) -> None:
    """Raise UsageError if a component in `lacks` exists on the cluster but was not applied by the harness.

    The ResourceFlavor and the ClusterQueue are checked too if `queue` is true.
    """
    components = [
        each
        for name, namespace in CONTROLLERS.items()
        if name in lacks
        for each in kube.objects("apps/v1", "Deployment", namespace)
    ]
    references = [("v1", "Namespace", tracker.NAMESPACE)] if "tracker" in lacks else []
    if queue and "queue" in lacks:
        references += [(queues.API, "ResourceFlavor", queues.FLAVOR)]
        references += [(queues.API, "ClusterQueue", queues.CLUSTER_QUEUE)]
    components += filter(None, (kube.get(*each) for each in references))
    foreign = [f"{each['kind']} {each['metadata']['name']}" for each in components if not applied_by_us(each)]
    if foreign:
        raise UsageError(
            f"objects that the harness did not create already exist on this cluster, but do not work: "
            f"{', '.join(foreign)}",
            hint="repair these objects yourself, because --install does not change existing objects; "
            "`harness preflight` shows the problems",
        )


def _version(kube: Kube) -> str:
    return str(client.VersionApi(kube.api).get_code(_request_timeout=10).git_version)
