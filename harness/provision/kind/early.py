"""Fill a cluster while kind still creates it.

Images go there as soon as containerd answers, objects as soon as the API does. kind mostly waits, for the
control plane and then for each node. It is an attempt: `install` does whatever this did not, and reports why
that fails.
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
from harness.core.deadlines import Deadline
from harness.core.errors import HarnessError
from harness.core.kubernetes import NOT_SERVED, Kube
from harness.core.retries import pause
from harness.provision.controllers import install as controllers
from harness.provision.controllers import tracker as embedded
from harness.provision.images.load import load_images
from harness.provision.images.stack import Stack
from harness.provision.kind.nodes import KindNodes

LOOK_SECONDS = 0.3
_CONFIGURED = "/kind/kubeadm.conf"
"""kind writes it when it is done with a node's containerd, just before kubeadm starts."""
_AUTHORITY = "/etc/kubernetes/pki/ca.crt"
ROUTED_SECONDS = 30.0


@dataclass
class Begun:
    """What is in a new cluster already."""

    prepared: bool = False
    deployed: bool = False
    tracker: bool = False


class _Stopped(Exception):
    """kind has ended."""


@contextmanager
def filling(kind: KindNodes, stack: Stack, own: tuple[str, str], context: RecordedContext) -> Iterator[Begun]:
    """Fill the cluster that the block creates. `own` are the tags of the worker image and of the tracker's.

    The block's end waits for what was begun. Its exception stops it.
    """
    begun, created, stop = Begun(), threading.Event(), threading.Event()
    if stack.mirrors or stack.containerd_patches:
        yield begun  # kind or `install` first changes containerd, and restarts it
        return
    with ThreadPoolExecutor(2) as background:
        filling = _Filling(kind, stack, own, context, begun, created, stop)
        background.submit(filling.images)
        background.submit(filling.objects)
        try:
            yield begun
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
        own: tuple[str, str],
        context: RecordedContext,
        begun: Begun,
        created: threading.Event,
        stop: threading.Event,
    ) -> None:
        self._kind, self._stack, self._context = kind, stack, context
        self._worker, self._tracker = own
        self._begun, self._created, self._stop = begun, created, stop
        self._loaded = threading.Event()
        """The images of controllers and tracker are on the nodes: a pod that waits for one waits 10 s."""

    def images(self) -> None:
        """Load every image into the nodes that need it, those that pods wait for first."""
        try:
            self._until(self._configured)
            load_images(list(self._stack.node_images), self._kind.nodes(), self._context)
            load_images([self._tracker], self._kind.pools(), self._context)
            self._loaded.set()
            load_images([self._worker], self._kind.pools(), self._context)
        except (_Stopped, HarnessError):
            return
        finally:
            self._loaded.set()

    def objects(self) -> None:
        """Apply controllers and tracker. Webhooks come later: they would stop kind's own pods."""
        try:
            self._until(self._answers)
            kube = Kube(self._kind.kubeconfig, self._kind.context)
            kube.retried = self._context.writer.retry
            manifests = self._stack.jobset_manifest, self._stack.kueue_manifest
            controllers.prepare(kube, *manifests)
            self._begun.prepared = True
            self._loaded.wait()
            self._until(lambda: routed(self._kind, kube))
            controllers.deploy(kube, *manifests)
            self._begun.deployed = True
            if self._kind.settings.tracker == "embedded":
                embedded.begin(kube, self._tracker)
                self._begun.tracker = True
        except (_Stopped, HarnessError, ApiException, HTTPError, OSError, NOT_SERVED):
            return

    def _until(self, done: Callable[[], bool]) -> None:
        """Wait as long as kind works. What is not there when it ends is left to `install`."""
        while not done():
            if self._created.wait(LOOK_SECONDS):
                if not self._stop.is_set() and done():
                    return
                raise _Stopped

    def _configured(self) -> bool:
        nodes = self._kind.nodes()
        if len(nodes) != self._kind.settings.workers + 1:
            return False
        look = f"test -e {_CONFIGURED} && ctr version >/dev/null"
        return all(_ok(["docker", "exec", node, "sh", "-c", look]) for node in nodes)

    def _answers(self) -> bool:
        """Return whether the API server lets its administrator in, by the kubeconfig that kind will write."""
        kind = self._kind
        export = ["export", "kubeconfig", "--name", kind.name, "--kubeconfig", str(kind.kubeconfig)]
        if not _ok([kind.settings.kind_bin, *export]):
            return False
        try:
            answer = Kube(kind.kubeconfig, kind.context).fetch("/api/v1/namespaces/kube-system", seconds=2)
        except (HarnessError, ApiException, HTTPError):
            return False
        return answer.status == 200


def routed(kind: KindNodes, kube: Kube) -> bool:
    """Return whether the control plane reaches the API server by its Service, as the controllers there will.

    kube-proxy writes the rules for that some time after the node is Ready. Until then the address leads out
    of the machine, where something else may answer: so the certificate counts.
    """
    service = kube.get("v1", "Service", "kubernetes", "default")
    if service is None:
        return False
    address = service["spec"]["clusterIP"]
    ask = ["curl", "--silent", "--noproxy", "*", "--max-time", "2", "--cacert", _AUTHORITY]
    return all(_ok(["docker", "exec", node, *ask, f"https://{address}/livez"]) for node in kind.nodes()[:1])


def wait_routed(kind: KindNodes, kube: Kube, seconds: float = ROUTED_SECONDS) -> None:
    """Wait until `routed`. Where it stays otherwise, the controllers say so themselves."""
    deadline = Deadline.after(seconds)
    while not routed(kind, kube) and not deadline.passed:
        pause(deadline)


def _ok(command: list[str]) -> bool:
    return processes.run(command, timeout=30, check=False).returncode == 0
