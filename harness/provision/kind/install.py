"""Install images, JobSet, Kueue, the queues and the tracker in a kind cluster.

Components that are already running are not changed, so reusing a cluster needs neither an installation nor a
build.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime

from kubernetes.client.exceptions import ApiException
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed
from urllib3.exceptions import HTTPError

from harness.context import RecordedContext, RunContext
from harness.core.clock import CLOCK
from harness.core.errors import HarnessError, UsageError
from harness.core.kubernetes import Kube, reached
from harness.core.progress import Progress
from harness.evidence.kubernetes.objects import items
from harness.provision.controllers import install as controllers
from harness.provision.controllers import queues, victoria_logs
from harness.provision.controllers import tracker as embedded
from harness.provision.controllers.fast_start import quick
from harness.provision.controllers.readiness import CONTROLLERS
from harness.provision.images import mirror, scripts
from harness.provision.images.build import ImageRef, build_tracker, build_worker
from harness.provision.images.containerd_import import LocalImage
from harness.provision.images.debian import Bases
from harness.provision.images.load import load_images
from harness.provision.images.stack import Stack, resolve
from harness.provision.images.victoria_logs import victoria_logs_images
from harness.provision.kind import docker_check, from_template, pause_resume, preload, template
from harness.provision.kind.nodes import KindNodes
from harness.provision.kind.preload import CompletedSteps
from harness.provision.konduktor import konduktor_bin, konduktor_version

SERVING_SECONDS = 180
"""The maximum number of seconds to wait until the controllers are ready after the nodes were restarted."""


@dataclass(frozen=True)
class Images:
    """All images and manifests for a kind cluster, built or downloaded."""

    stack: Stack
    worker: ImageRef
    tracker: ImageRef

    @classmethod
    def make(cls, context: RunContext) -> Images:
        own: dict[str, ImageRef] = {}

        def build_own(bases: Bases) -> list[LocalImage]:
            own.update(worker=build_worker(bases, context), tracker=build_tracker(bases, context))
            # An error is ignored here, because a launch with konduktor repeats the installation and reports
            # the error, and other launches do not need konduktor.
            with suppress(HarnessError):
                konduktor_bin(context)
            return [image.local for image in own.values()]

        return cls(resolve(context, build_own), **own)

    @property
    def own(self) -> list[LocalImage]:
        """Return the images for the harness's own pods."""
        return [self.worker.local, self.tracker.local]

    @property
    def fingerprint(self) -> str:
        """Return a hash of the components that `install` installs only once per cluster."""
        parts = [*(path.read_bytes() for path in self.stack.controllers), self.tracker.tag.encode()]
        return hashlib.sha256(b"\0".join(parts)).hexdigest()

    def versions(self) -> dict[str, str]:
        """Return the versions of all components, which are recorded in the bundle's manifest."""
        return {
            **self.stack.versions,
            "konduktor": konduktor_version(),
            "kubernetes": self.stack.kubernetes,
            "images": self.stack.image_source,
            "worker": scripts.version_text(self.worker.tag, self.worker.changed),
        }


def create_or_reuse(kind: KindNodes, images: Images, context: RecordedContext) -> CompletedSteps | None:
    """Create or reuse the cluster.

    Return the installation steps that are already complete in a new cluster, or None for a reused cluster.
    """
    progress, stack = context.progress, images.stack
    state = kind.state()
    if state is not None and state.phase != "creating" and (nodes := kind.running()):
        required, actual = (stack.node_image, kind.settings.workers), (state.node_image, state.workers)
        # Only a cluster in the "ready" phase is complete. In any other phase, objects are still missing, and
        # the webhooks of a controller that is not ready would reject them.
        is_complete = state.phase == "ready"
        if kind.abandoned() and (required != actual or not is_complete or not kind.healthy()):
            progress(
                f"deleting cluster {kind.name}, because a killed run left it behind in an unusable state"
            )
            kind.delete()
            return create_or_reuse(kind, images, context)
        if required != actual:
            _require_same(kind.name, state.versions, images.stack.versions)
            raise HarnessError(
                f"cluster {kind.name}: expected the node image and number of workers {required}, found "
                f"{actual}",
                hint=f"remove the cluster with `harness down --cluster-name {kind.name}`, or choose "
                "another --cluster-name",
                cause="cluster.mismatch",
            )
        if not any(nodes.values()):
            start(kind, progress)
        trouble = kind.trouble(list(nodes))
        if trouble is not None and all(nodes.values()) and (restarted_at := pause_resume.restarted(kind)):
            progress(f"cluster {kind.name}: the nodes were restarted; waiting until the cluster is ready")
            _until_served(kind, restarted_at)
            trouble = kind.trouble(list(nodes))
        if trouble is not None:
            raise trouble
        progress(f"cluster {kind.name}: reused")
        return None
    docker_check.tools(kind.settings)
    own = (images.worker.local, images.tracker.local)
    usable_template = usable(kind, images, context)
    count = kind.settings.workers
    node_counts = f"1 control plane and {count} worker{'' if count == 1 else 's'}"
    if usable_template is not None:
        progress(f"cluster {kind.name}: starting {node_counts} from the template")
        copy = from_template.attempt(kind, usable_template, stack, own, context)
        if copy is not None:
            return copy
    progress(f"cluster {kind.name}: creating {node_counts}")
    with preload.filling(kind, stack, own, context) as completed:
        kind.create(stack.node_image, stack.containerd_patches, context)
    return completed


def usable(kind: KindNodes, images: Images, context: RunContext) -> template.Template | None:
    """Return the template from which to start the cluster, or None if kind must create it.

    If kind must create it for an uncommon reason, a progress message reports the reason.
    """
    reason = from_template.rejection(kind, images.stack)
    if reason is not None:
        if reason:
            context.progress(f"cluster {kind.name}: creating it with kind, without a template ({reason})")
        return None
    name = template.tag(kind.settings, images.stack, images.own, context)
    if template.attempts_exhausted(name, context):
        failures_path = context.settings.cache_dir / template.FAILURES
        context.progress(
            f"cluster {kind.name}: creating it with kind, because starting from the template failed "
            f"{template.MAX_FAILURES} times ({failures_path})"
        )
        return None
    own_template = template.find(name)
    if own_template is not None and not own_template.fresh:
        context.progress(
            f"cluster {kind.name}: the template, which was created at {own_template.made}, is too old"
        )
        return None
    return own_template


def lacking(kind: KindNodes, images: Images, context: RunContext) -> bool:
    """Return true if the cluster could be created from a template, but a usable template does not exist
    yet."""
    if from_template.rejection(kind, images.stack) is not None:
        return False
    name = template.tag(kind.settings, images.stack, images.own, context)
    own_template = template.find(name)
    return (own_template is None or not own_template.fresh) and not template.attempts_exhausted(name, context)


def _freeze(kind: KindNodes, images: Images, context: RecordedContext) -> None:
    """Create a template from a cluster that kind has just created.

    If this fails, a progress message reports the reason, and no error is raised.
    """
    if from_template.rejection(kind, images.stack) is not None:
        return
    try:
        name = template.tag(kind.settings, images.stack, images.own, context)
        if not template.attempts_exhausted(name, context):
            with context.writer.attempt("template for the next cluster"):
                template.make(name, kind, images.stack, images.own, context)
    except (HarnessError, OSError, ValueError, KeyError) as error:
        context.progress(f"could not create a template for the next cluster: {from_template.reason(error)}")


def install(
    kind: KindNodes,
    kube: Kube,
    images: Images,
    context: RecordedContext,
    completed: CompletedSteps | None = None,
) -> None:
    """Install the controllers, the queues and the tracker while the worker image is being loaded.

    After that, set the cluster's phase to ready, and create a template if kind has just created the cluster.
    """
    state = kind.state()
    assert state is not None
    if state.phase == "ready" and state.fingerprint == images.fingerprint:
        _recheck(kind, kube, images, context)
    else:
        if state.phase == "ready":
            require_versions(kind.name, kube, images.stack.versions)
        _install(kind, kube, images, context, completed or CompletedSteps())
        versions = {str(name): images.stack.versions[name] for name in CONTROLLERS}
        kind.save(replace(state, phase="ready", fingerprint=images.fingerprint, versions=versions))
        if completed is not None and not completed.copied:
            _freeze(kind, images, context)
    if kind.settings.logs:
        with context.writer.stage("logs"), reached():
            _install_logs(kind, kube, images, context)


def require_versions(cluster: str, kube: Kube, versions: Mapping[str, str]) -> None:
    """Raise UsageError if the cluster's JobSet or Kueue version differs from the one in `versions`.

    Objects stored by one version might be invalid in another version.
    """
    installed: dict[str, str] = {}
    with reached():
        for name, namespace in CONTROLLERS.items():
            deployment = kube.get("apps/v1", "Deployment", f"{name}-controller-manager", namespace) or {}
            for container in items(deployment, "spec", "template", "spec", "containers"):
                if container.get("name") == "manager":
                    image = str(container.get("image"))
                    installed[name] = image.partition("@")[0].rpartition(":")[2]
    _require_same(cluster, installed, versions)


def _require_same(cluster: str, installed: Mapping[str, str], required: Mapping[str, str]) -> None:
    for name in installed.keys() & required.keys():
        if (release := _release(installed[name])) != _release(required[name]):
            raise UsageError(
                f"cluster {cluster}: expected {name} {_release(required[name])}, found {release}",
                hint="run `harness down`, or set HARNESS_CLUSTER_NAME: another version needs a new cluster",
            )


def _release(tag: str) -> str:
    """Return the version in an image's tag, without the digest at the end of a locally built image's tag."""
    return re.sub(r"-[0-9a-f]{12}$", "", tag)


def _recheck(kind: KindNodes, kube: Kube, images: Images, context: RecordedContext) -> None:
    """Check that the components installed earlier are still ready, and load newer images into the nodes."""
    writer = context.writer
    with _travelling(kind, images, context):
        with writer.stage("controllers"), reached():
            controllers.recheck_serving(kube)
        if kind.settings.tracker == "embedded":
            with writer.stage("tracker"), reached():
                embedded.check_serving(kube)


@contextmanager
def _travelling(kind: KindNodes, images: Images, context: RecordedContext) -> Iterator[None]:
    """Load the worker and tracker images in the background while the `with` block runs, and wait for them at
    its end."""

    def travel() -> None:
        with context.writer.stage("images to nodes"):
            load_images(images.own, kind.pools(), context)

    with ThreadPoolExecutor(1) as background:
        transfer = background.submit(travel)
        yield
        transfer.result()


def _install(
    kind: KindNodes, kube: Kube, images: Images, context: RecordedContext, completed: CompletedSteps
) -> None:
    stack, writer, progress = images.stack, context.writer, context.progress
    if stack.mirrors:
        with writer.stage("mirrors"):
            mirror.teach(kind.nodes(), stack.mirrors, progress)
    if stack.node_images and not completed.images:
        with writer.stage("controller images to nodes"):
            load_images(list(stack.node_images), kind.nodes(), context)
    transfer = nullcontext() if completed.images else _travelling(kind, images, context)
    with transfer, writer.stage("controllers"), reached():
        if not completed.prepared:
            controllers.prepare(kube, stack.controllers, quick)
        if not completed.deployed:
            controllers.deploy(kube, stack.controllers, quick)
        controllers.complete(kube, stack.controllers, progress)
    with writer.stage("tracker"), reached():
        if not completed.tracker:
            embedded.begin(kube, images.tracker.tag)
        embedded.wait(kube)
        progress("tracker: serving")
    with writer.stage("queues"), reached():
        amounts = queues.install(kube)
        progress(f"queues: {queues.CLUSTER_QUEUE} active, quota {amounts}")
    if completed.copied:
        with writer.stage("DNS"), reached():
            from_template.wait_dns(kube)


def _install_logs(kind: KindNodes, kube: Kube, images: Images, context: RecordedContext) -> None:
    """Install VictoriaLogs for `konduktor logs`, unless it is already installed. vlagent also runs on the
    control plane."""
    logs = victoria_logs_images(context, published=images.stack.image_source == "registry")
    if logs.local:
        load_images([logs.server, logs.agent], kind.nodes(), context)
    if victoria_logs.install(kube, logs, images.tracker.tag):
        context.progress("logs: VictoriaLogs is running, so `konduktor logs` can be used")


def start(kind: KindNodes, progress: Progress) -> bool:
    """Start a paused cluster and wait until it is ready. Return False if the cluster was not paused."""
    if not pause_resume.paused(kind):
        return False
    progress(f"cluster {kind.name} was paused; starting its nodes")
    started_at = CLOCK.utc()
    pause_resume.resume(kind)
    _until_served(kind, started_at)
    progress(f"cluster {kind.name}: serves again")
    return True


def _until_served(kind: KindNodes, started_at: datetime) -> None:
    """Wait until the controllers and the tracker are ready again after their nodes were started."""
    kube = kind.kube()
    for attempt in Retrying(
        stop=stop_after_delay(SERVING_SECONDS),
        wait=wait_fixed(1),
        retry=retry_if_exception_type((HarnessError, ApiException, HTTPError)),
        reraise=True,
    ):
        with attempt:
            controllers.renew(kube, started_at)
            controllers.recheck_serving(kube)
            embedded.check_serving(kube)
