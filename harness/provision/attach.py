"""A launch on somebody's own cluster: what it needs is looked at first, and nothing is installed unasked."""

from __future__ import annotations

from collections.abc import Callable

from kubernetes import client

from harness.core.errors import HarnessError, UsageError
from harness.core.kubernetes import Kube, reached
from harness.evidence.writer import BundleWriter
from harness.provision.controllers import install as controllers
from harness.provision.controllers import queues
from harness.provision.controllers import tracker as embedded
from harness.provision.existing import ExistingCluster
from harness.provision.images.build import ImageRef
from harness.provision.images.stack import resolve
from harness.provision.konduktor import konduktor_version
from harness.provision.preflight import Asking, Requirement, missing, requirements
from harness.provision.ready import Ready
from harness.settings import Settings

Progress = Callable[[str], None]
HINT = "`harness preflight` shows all of it; with --install it installs what is missing"


def attach(settings: Settings, writer: BundleWriter, progress: Progress) -> Ready:
    """The cluster of --kubeconfig as it is.

    Raises HarnessError that names everything it lacks, with the cause of the first.
    """
    cluster = ExistingCluster(settings)
    with writer.stage("cluster"), reached():
        kube = cluster.kube()
        kube.retried = writer.retry
        version = _version(kube)
        progress(f"cluster {cluster.name}: Kubernetes {version}, used as it is")
    with writer.stage("preflight"), reached():
        found = requirements(kube, settings)
        for requirement in found:
            progress(f"{requirement.what}: {requirement.seen}")
        lacks = [requirement for requirement in missing(found) if requirement.what != "image"]
        if lacks:
            told = "; ".join(f"{requirement.what}: {requirement.seen}" for requirement in lacks)
            problem = lacks[0].problem
            assert problem is not None
            raise HarnessError(f"cluster {cluster.name} lacks: {told}", hint=HINT, cause=problem.cause)
        controllers.prove(kube)
        versions = {
            requirement.what: requirement.seen
            for requirement in found
            if requirement.what in ("jobset", "kueue")
        }
        nodes = queues.schedulable_nodes(kube)
    return Ready(
        cluster,
        kube,
        ImageRef(settings.worker_image or "", ""),
        nodes,
        {**versions, "kubernetes": version, "konduktor": konduktor_version(), "images": "registry"},
        created=False,
        use=cluster.use(),
    )


def look(settings: Settings, job: Asking | None = None) -> tuple[str, list[Requirement]]:
    """Kubernetes version, and everything that a launch needs there. Changes nothing."""
    cluster = ExistingCluster(settings)
    with reached():
        kube = cluster.kube()
        return _version(kube), requirements(kube, settings, job)


def install(settings: Settings, progress: Progress) -> None:
    """Whatever of JobSet, Kueue, queue and tracker the cluster lacks; what is there is left as it is."""
    cluster = ExistingCluster(settings)
    with reached():
        kube = cluster.kube()
        lacks = {requirement.what for requirement in missing(requirements(kube, settings))}
        if lacks & {"jobset", "kueue"}:
            stack = resolve(settings, progress)
            if stack.way != "registry":
                raise UsageError(
                    "JobSet and Kueue can only be installed where container registries are reached",
                    hint="HARNESS_IMAGES=registry, or install them by hand",
                )
            controllers.install(kube, stack.jobset_manifest, stack.kueue_manifest, progress)
        if lacks & {"queue", "kueue"} and settings.cluster_queue == queues.CLUSTER_QUEUE:
            progress(f"queue: {queues.install(kube)}")
        if "tracker" in lacks and settings.tracker == "embedded":
            if settings.tracker_image is None:
                raise UsageError(
                    "the embedded tracker needs an image that the nodes of the cluster find",
                    hint="push harness/tracker to a registry, and name it: HARNESS_TRACKER_IMAGE; "
                    "or --tracker hosted",
                )
            embedded.install(kube, settings.tracker_image)
            progress("tracker: serving")


def _version(kube: Kube) -> str:
    return str(client.VersionApi(kube.api).get_code(_request_timeout=10).git_version)
