"""From nothing to a cluster that can take a launch: images, kind, JobSet, Kueue, queues, tracker.

Everything that is already there and proved is left as it is: a warm cluster installs and builds nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

from kubernetes.client.exceptions import ApiException
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed
from urllib3.exceptions import HTTPError

from harness.core.errors import HarnessError
from harness.core.kubernetes import Kube, reached
from harness.core.locks import locked
from harness.evidence.writer import BundleWriter
from harness.provision import attach
from harness.provision.controllers import install, queues
from harness.provision.controllers import tracker as embedded
from harness.provision.images import mirror, scripts
from harness.provision.images.build import ImageRef, build_tracker, build_worker
from harness.provision.images.load import load_images
from harness.provision.images.stack import Stack, resolve
from harness.provision.kind import docker, power
from harness.provision.kind.kind import KindCluster, State
from harness.provision.konduktor import konduktor_version
from harness.provision.ready import Ready
from harness.settings import Settings

Progress = Callable[[str], None]
AGAIN_SECONDS = 180
"""For controllers after their nodes were started again: Kueue takes about a minute for its certificates."""


def up(settings: Settings, writer: BundleWriter, progress: Progress) -> Ready:
    """A ready cluster. What fails is in the writer's stages with its cause; a cluster that this call began is
    gone again then (unless kept). Raises UsageError for a cluster that is not the harness's own."""
    if settings.kubeconfig is not None:
        return attach.attach(settings, writer, progress)
    kind = KindCluster(settings)
    waiting = f"waiting for another harness that works on cluster {kind.name}"
    with locked(kind.lock, lambda: progress(waiting)):
        with writer.stage("docker"):
            docker.daemon()
        with writer.stage("cluster name"):
            kind.refuse_foreign()
        with writer.stage("images"):
            stack = resolve(settings, progress)
            worker = build_worker(stack, settings, progress)
            tracker = build_tracker(stack, settings, progress)
        with ExitStack() as last:
            last.callback(writer.clean, "kind")
            with writer.stage("cluster"), reached():
                created = _cluster(kind, stack, writer, progress)
            try:
                kube = kind.kube()
                kube.retried = writer.retry
                _install(kind, kube, stack, worker, tracker, writer, progress)
            except BaseException:
                if created:  # one that was there stays, and can be asked itself
                    kind.export_logs(writer.path / "kind")
                if created and not settings.keep_cluster:
                    progress(f"deleting cluster {kind.name}")
                    kind.delete()
                raise
        if settings.keep_cluster:
            kind.keep()
        versions = {
            **stack.versions,
            "konduktor": konduktor_version(),
            "kubernetes": stack.kubernetes,
            "images": stack.way,
            "worker": scripts.said(worker.tag, worker.changed),
        }
        with reached():
            nodes = queues.schedulable_nodes(kube)
        return Ready(kind, kube, worker, nodes, versions, created, kind.use())


def _cluster(kind: KindCluster, stack: Stack, writer: BundleWriter, progress: Progress) -> bool:
    """True when it was created, False when the one that is there serves."""
    state = kind.state()
    if state is not None and state.phase != "creating" and kind.exists():
        wanted, there = (stack.node_image, kind.settings.workers), (state.node_image, state.workers)
        if kind.abandoned() and (wanted != there or not kind.healthy()):
            progress(f"cluster {kind.name}: left by a run that was killed, and of no use")
            kind.delete()
            return _cluster(kind, stack, writer, progress)
        if wanted != there:
            raise HarnessError(
                f"cluster {kind.name} has node image and workers {there}, wanted are {wanted}",
                hint=f"`harness down --cluster-name {kind.name}` removes it, or choose another name",
                cause="cluster.mismatch",
            )
        _start(kind, progress)
        if (trouble := kind.trouble()) is not None:
            raise trouble
        progress(f"cluster {kind.name}: reused")
        return False
    progress(f"cluster {kind.name}: creating 1 control plane and {kind.settings.workers} workers")
    kind.create(
        stack.node_image, stack.containerd_patches, writer.path / "kind", progress, writer.current.nonce
    )
    return True


def _install(
    kind: KindCluster,
    kube: Kube,
    stack: Stack,
    worker: ImageRef,
    tracker: ImageRef,
    writer: BundleWriter,
    progress: Progress,
) -> None:
    """Controllers, queues and tracker while the worker image travels; then the state says ready."""
    state = kind.state()
    assert state is not None
    nodes = kind.nodes()
    pools = nodes[1:] or nodes
    parts = (stack.jobset_manifest.read_bytes(), stack.kueue_manifest.read_bytes(), tracker.tag.encode())
    fingerprint = hashlib.sha256(b"\0".join(parts)).hexdigest()
    if state.phase == "ready" and state.fingerprint == fingerprint:
        with writer.stage("controllers"), reached():
            install.prove_again(kube)
        if kind.settings.tracker == "embedded":
            with writer.stage("tracker"), reached():
                embedded.prove(kube)
        with writer.stage("images to nodes"):
            load_images([worker.tag, tracker.tag], pools, kind.settings, progress)
        return
    if stack.mirrors:
        with writer.stage("mirrors"):
            mirror.teach(nodes, stack.mirrors, progress)
    if stack.node_images:
        with writer.stage("controller images to nodes"):
            load_images(list(stack.node_images), nodes, kind.settings, progress)
    with ThreadPoolExecutor(1) as background:

        def travel() -> None:
            with writer.stage("images to nodes"):
                load_images([worker.tag, tracker.tag], pools, kind.settings, progress)

        travelling = background.submit(travel)
        with writer.stage("controllers"), reached():
            install.install(kube, stack.jobset_manifest, stack.kueue_manifest, progress)
        travelling.result()
    with writer.stage("tracker"), reached():
        embedded.install(kube, tracker.tag)
        progress("tracker: serving")
    with writer.stage("queues"), reached():
        amounts = queues.install(kube)
        progress(f"queues: {queues.CLUSTER_QUEUE} active, quota {amounts}")
    _mark_ready(kind, state, fingerprint)


def _mark_ready(kind: KindCluster, state: State, fingerprint: str) -> None:
    kind.save(replace(state, phase="ready", fingerprint=fingerprint))


def _start(kind: KindCluster, progress: Progress) -> bool:
    """Of a cluster that was paused: what served before serves again when this returns. False: it was not."""
    if not power.paused(kind):
        return False
    progress(f"cluster {kind.name}: was paused; starting its nodes")
    power.resume(kind)
    kube = kind.kube()
    for attempt in Retrying(
        stop=stop_after_delay(AGAIN_SECONDS),
        wait=wait_fixed(1),
        retry=retry_if_exception_type((HarnessError, ApiException, HTTPError)),
        reraise=True,
    ):
        with attempt:
            install.prove_again(kube)
            embedded.prove(kube)
    progress(f"cluster {kind.name}: serves again")
    return True


def pause(settings: Settings, progress: Progress) -> bool:
    """Stop the cluster's nodes; everything in it stays. False when they were stopped already."""
    kind = KindCluster(settings)
    with locked(kind.lock, lambda: progress("waiting for another harness")):
        return power.pause(kind)


def resume(settings: Settings, progress: Progress) -> bool:
    """The opposite of `pause`, until everything serves. False when it was not paused."""
    kind = KindCluster(settings)
    with locked(kind.lock, lambda: progress("waiting for another harness")), reached():
        power.owned(kind)
        return _start(kind, progress)


def leave(settings: Settings, progress: Progress, ready: Ready | None = None, owner: str = "") -> bool:
    """Done with the cluster: the last one that used it removes it, unless somebody wants it kept.

    Without `ready`, of a cluster that never came to be used, only the run that began it (`owner`) does. False
    when it stays. May be called again after an interruption.
    """
    kind = KindCluster(settings)
    if ready is not None:
        ready.use.release()
    if not removable(settings, ready, owner):
        return False
    with locked(kind.lock, lambda: progress("waiting for another harness")):
        if not removable(settings, ready, owner):
            return False
        if kind.used():
            progress(f"cluster {kind.name} stays: another harness uses it")
            return False
        progress(f"deleting cluster {kind.name}")
        return kind.delete()


def removable(settings: Settings, ready: Ready | None, owner: str) -> bool:
    """Whether this run is to remove the cluster once nobody uses it."""
    if settings.kubeconfig is not None:
        return False
    state = KindCluster(settings).state()
    if state is None or state.kept or settings.keep_cluster:
        return False
    return ready is not None or state.owner == owner


def down(settings: Settings, progress: Progress) -> bool:
    """Remove the cluster that the harness made, also when it is used or kept. False when there was none."""
    kind = KindCluster(settings)
    with locked(kind.lock, lambda: progress("waiting for another harness")):
        if kind.state() is None:
            return False
        used = "; a harness that uses it will fail" if kind.used() else ""
        progress(f"deleting cluster {kind.name}{used}")
        return kind.delete()
