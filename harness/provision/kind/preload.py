"""Load images and objects into a cluster while kind is still creating it.

Images are loaded once containerd responds, and objects are applied once the API server responds. Meanwhile,
kind mostly waits for the control plane and then for each node. Failures are ignored here, because `install`
repeats the missing steps and reports their errors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from harness.context import RecordedContext
from harness.core import processes
from harness.core.errors import HarnessError
from harness.core.kubernetes import NOT_SERVED, Kube
from harness.provision.controllers import install
from harness.provision.controllers import tracker as embedded
from harness.provision.controllers.fast_start import quick
from harness.provision.images.containerd_import import LocalImage
from harness.provision.images.load import load_images
from harness.provision.images.stack import Stack
from harness.provision.kind.nodes import KindNodes

POLL_SECONDS = 0.3
CHECK_SECONDS, PAUSE_SECONDS = 4.0, 0.2
"""CHECK_SECONDS is the time for which one `docker exec` repeats a check on a node. PAUSE_SECONDS is the pause
between two checks."""
_AUTHORITY = "/etc/kubernetes/pki/ca.crt"
_CONFIGURED = "test -e /kind/kubeadm.conf && ctr version >/dev/null"
"""A shell command that tests whether containerd is configured. kind writes kubeadm.conf after it has
configured containerd, and just before it starts kubeadm."""
_API_SERVER_LIVE = (
    "test -e /etc/kubernetes/admin.conf && "
    f"curl --silent --fail --noproxy '*' --cacert {_AUTHORITY} https://localhost:6443/livez >/dev/null"
)


@dataclass
class CompletedSteps:
    """The installation steps that were completed while a new cluster was being created."""

    images: bool = False
    prepared: bool = False
    deployed: bool = False
    tracker: bool = False
    copied: bool = False
    """Whether the cluster was started from a template."""


class _Stopped(Exception):
    """Raised in a step that is still waiting for the cluster when the creation ends."""


@contextmanager
def filling(
    kind: KindNodes, stack: Stack, own: tuple[LocalImage, LocalImage], context: RecordedContext
) -> Iterator[CompletedSteps]:
    """Return a context manager for the creation of a cluster, which loads images and objects into the new
    cluster.

    `own` contains the worker and tracker images. At the end of the block, steps that have begun are
    completed. If the block raises an exception, they are stopped instead.
    """
    completed, created, stop = CompletedSteps(), threading.Event(), threading.Event()
    if stack.mirrors or stack.containerd_patches:
        # Nothing is loaded, because kind or `install` will restart containerd with another configuration.
        yield completed
        return
    with ThreadPoolExecutor(2) as background:
        filling = _Filling(kind, stack, own, context, completed, created, stop)
        background.submit(filling.images)
        background.submit(filling.objects)
        try:
            yield completed
        except BaseException:
            stop.set()
            raise
        finally:
            created.set()


class _Filling:
    def __init__(
        self,
        kind: KindNodes,
        stack: Stack,
        own: tuple[LocalImage, LocalImage],
        context: RecordedContext,
        completed: CompletedSteps,
        created: threading.Event,
        stop: threading.Event,
    ) -> None:
        self._kind, self._stack, self._context = kind, stack, context
        self._worker, self._tracker = own
        self._completed, self._created, self._stop = completed, created, stop
        self._loaded = threading.Event()
        """An event that is set once the nodes have the images of the controllers and the tracker, or if
        loading them has failed. If a pod started without its image, the kubelet would retry only after 10 s.
        """

    def images(self) -> None:
        """Load all images into the nodes that need them. Images that pods are already waiting for are loaded
        first."""
        kind, attempt = self._kind, self._context.writer.attempt
        try:
            with attempt("nodes to have containerd"):
                self._until(self._all_nodes_created)
                self._until(self._configured)
            with attempt("controller images to new nodes"):
                # The control plane does not need the tracker's image, but one call is faster than two.
                load_images([*self._stack.node_images, self._tracker], kind.nodes(), self._context)
            self._loaded.set()
            with attempt("worker image to new nodes"):
                load_images([self._worker], kind.pools(), self._context)
            self._completed.images = True
        except (_Stopped, HarnessError):
            return
        finally:
            self._loaded.set()

    def objects(self) -> None:
        """Apply the controllers and the tracker.

        `install` applies the webhooks later, because they would block kind's own pods.
        """
        attempt = self._context.writer.attempt
        try:
            with attempt("API server to answer"):
                self._until(self._all_nodes_created)
                self._until(lambda: succeeds_soon(self._kind.nodes()[0], _API_SERVER_LIVE))
                self._until(self._exported)
                self._until(self._admitted)
            kube = Kube(self._kind.kubeconfig, self._kind.context)
            kube.on_retry = self._context.writer.retry
            with attempt("definitions and roles"):
                install.prepare(kube, self._stack.controllers, quick)
            self._completed.prepared = True
            self._loaded.wait()
            with attempt("Deployments"):
                install.deploy(kube, self._stack.controllers, quick)
                self._completed.deployed = True
                if self._kind.settings.tracker == "embedded":
                    embedded.begin(kube, self._tracker.tag)
                    self._completed.tracker = True
        except (_Stopped, HarnessError, ApiException, HTTPError, OSError, NOT_SERVED):
            return

    def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` returns true.

        Raises _Stopped if the creation of the cluster ends first. `install` then performs the missing steps.
        """
        while not condition():
            if self._created.wait(POLL_SECONDS):
                if not self._stop.is_set() and condition():
                    return
                raise _Stopped

    def _all_nodes_created(self) -> bool:
        """Return whether Docker has the containers of all nodes."""
        return len(self._kind.nodes()) == self._kind.settings.workers + 1

    def _configured(self) -> bool:
        with ThreadPoolExecutor(self._kind.settings.workers + 1) as pool:
            return all(pool.map(lambda node: succeeds_soon(node, _CONFIGURED), self._kind.nodes()))

    def _admitted(self) -> bool:
        """Return whether the API server accepts requests with the administrator's credentials from kind's
        kubeconfig."""
        try:
            kube = Kube(self._kind.kubeconfig, self._kind.context)
            return kube.fetch("/api/v1/namespaces/kube-system", seconds=2).status == 200
        except (HarnessError, ApiException, HTTPError):
            return False

    def _exported(self) -> bool:
        kind = self._kind
        export = ["export", "kubeconfig", "--name", kind.name, "--kubeconfig", str(kind.kubeconfig)]
        return _succeeds([kind.settings.kind_bin, *export])


def succeeds_soon(node: str, test: str) -> bool:
    """Return whether a shell test succeeds on a node within CHECK_SECONDS.

    The test is repeated inside the node, because each `docker exec` takes 0.1 s of CPU time, and kind needs
    all CPUs.
    """
    attempts = round(CHECK_SECONDS / PAUSE_SECONDS)
    script = f"for try in $(seq {attempts}); do {test} && exit 0; sleep {PAUSE_SECONDS}; done; exit 1"
    return _succeeds(["docker", "exec", node, "sh", "-c", script])


def _succeeds(command: list[str]) -> bool:
    return processes.run(command, timeout=30, check=False).returncode == 0
