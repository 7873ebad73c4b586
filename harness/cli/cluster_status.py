"""Report the state of a cluster, its controllers, queues and launches, and the disk space in use."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from harness.cli.launch_status_text import LaunchStatus
from harness.core import disk_use
from harness.provision.kind import pause_resume
from harness.provision.kind.nodes import KindNodes
from harness.report.amounts import amount
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.context import RunContext


class Status(BaseModel, frozen=True):
    """The state of a cluster.

    If `healthy` is true, the cluster can be used. Otherwise, the fields with default values are unset,
    because only a healthy cluster can provide them.
    """

    cluster: str
    created_by_harness: bool
    phase: str | None
    kept: bool | None
    used: bool
    kubeconfig: str | None
    containers: list[str]
    paused: bool
    healthy: bool
    trouble: str | None
    others: list[str]
    """The names of all the harness's clusters on this machine, including this cluster."""
    disk: dict[str, int]
    """Maps "free" to the number of free bytes on Docker's disk, and each of the harness's folders to its size
    in bytes."""
    nodes: dict[str, str] = {}
    """Maps each node's name to its kubelet version."""
    controllers: dict[str, int] = {}
    """Maps the namespace/name of each Deployment to its number of ready pods."""
    queues: dict[str, int] = {}
    """Maps each ClusterQueue's name to its number of pending Workloads."""
    launches: list[LaunchStatus] = []

    def document(self) -> dict[str, Any]:
        """Return the status as a JSON document for --json, without unset fields."""
        return self.model_dump(exclude_unset=True)

    def text(self) -> str:
        """Return the status as text that fits on one screen."""
        lines = [f"cluster      {self.cluster}: {self._condition()}"]
        lines += [f"kubeconfig   {self.kubeconfig}"] if self.kubeconfig else []
        lines += [f"node         {name}  {version}" for name, version in self.nodes.items()]
        lines += [f"controller   {name}  {ready} ready" for name, ready in self.controllers.items()]
        lines += [f"queue        {name}  {pending} pending" for name, pending in self.queues.items()]
        lines += [line for launch in self.launches for line in launch.lines()]
        disk = {name: amount(size) for name, size in self.disk.items()}
        used = ", ".join(f"{name} {size}" for name, size in disk.items() if name != "free")
        lines.append(f"disk         {disk['free']} free; {used}")
        other_clusters = [name for name in self.others if name != self.cluster]
        lines += [f"others       {', '.join(other_clusters)} (--cluster-name)"] if other_clusters else []
        return "\n".join(lines)

    def _condition(self) -> str:
        suffix = ", kept" if self.kept else ""
        if self.healthy:
            return f"healthy, {self.phase}{suffix}{', in use' if self.used else ''}"
        if self.created_by_harness and self.paused:
            return "paused (`harness resume`)"
        if self.created_by_harness:
            return f"not healthy, {self.phase}: {self.trouble} (`harness down` removes it)"
        if self.containers:
            return "exists, but was not created by the harness"
        return "none (`harness up` creates one)"


def status(settings: Settings) -> Status:
    """Return the state of the cluster (nodes, controllers, queues and launches), and the disk usage."""
    kind = KindNodes(settings)
    state = kind.state()
    with ThreadPoolExecutor(1) as pool:
        disk = pool.submit(_disk, settings)
        running = kind.running()
        containers = list(running)
        trouble = kind.trouble(containers) if state is not None else None
    report = Status(
        cluster=kind.name,
        created_by_harness=state is not None,
        phase=state.phase if state else None,
        kept=state.kept if state else None,
        used=kind.used(),
        kubeconfig=str(kind.kubeconfig) if state else None,
        containers=containers,
        paused=pause_resume.stopped(running),
        healthy=state is not None and trouble is None,
        trouble=trouble.message if trouble else None,
        others=sorted(path.parent.name for path in kind.dir.parent.glob("*/state.json")),
        disk=disk.result(),
    )
    if not report.healthy:
        return report
    kube = kind.kube()
    nodes = {n["metadata"]["name"]: n["status"]["nodeInfo"]["kubeletVersion"] for n in kube.ready_nodes()}
    controllers = {
        f"{d['metadata']['namespace']}/{d['metadata']['name']}": (d["status"].get("readyReplicas") or 0)
        for namespace in ("jobset-system", "kueue-system", "harness-system", "victoria-logs")
        for d in kube.objects("apps/v1", "Deployment", namespace)
    }
    report = report.model_copy(update={"nodes": nodes, "controllers": controllers})
    if state is None or state.phase != "ready":
        return report
    queues = {
        q["metadata"]["name"]: q["status"].get("pendingWorkloads", 0)
        for q in kube.objects("kueue.x-k8s.io/v1beta2", "ClusterQueue")
    }
    from harness.cli.launch_status import launches

    return report.model_copy(update={"queues": queues, "launches": launches(kube)})


def _disk(settings: Settings) -> dict[str, int]:
    """Return the number of free bytes on Docker's disk, and the size of each of the harness's folders in
    bytes."""
    folders = {"cache": settings.cache_dir, "runs": settings.runs_dir, "state": settings.state_dir}
    used = {name: disk_use.bytes_used(path) for name, path in folders.items()}
    docker = Path("/var/lib/docker")
    return {"free": shutil.disk_usage(docker if docker.is_dir() else Path.cwd()).free, **used}


def build_images(context: RunContext) -> dict[str, str]:
    """Build every image for a cluster, and the torchrun controller's image, without creating a cluster."""
    from harness.provision.images.build import ImageRef, build_controller, build_tracker, build_worker
    from harness.provision.images.containerd_import import LocalImage
    from harness.provision.images.debian import Bases
    from harness.provision.images.stack import resolve

    own: dict[str, ImageRef] = {}

    def build_own(bases: Bases) -> list[LocalImage]:
        own["worker"] = build_worker(bases, context, exact=True)
        own["tracker"] = build_tracker(bases, context)
        own["torchrun-controller"] = build_controller(bases, context)
        return [own["worker"].local, own["tracker"].local]

    node = resolve(context, build_own).node_image
    return {"node": node, **{name: image.tag for name, image in own.items()}}
