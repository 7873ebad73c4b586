"""Report what is there: a cluster, its controllers, queues and launches, and the disk space they take."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from harness.context import RunContext
from harness.core.kubernetes import Kube, Object, condition
from harness.evidence import folder
from harness.launch.names import NONCE_LABEL
from harness.provision.images.build import build_tracker, build_worker
from harness.provision.images.stack import resolve
from harness.provision.kind.cluster import KindCluster
from harness.report.runs import amount
from harness.settings import Settings


class Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class LaunchStatus(Record):
    """One JobSet of the harness."""

    namespace: str
    jobset: str
    state: str
    workload: str
    """What Kueue says of it."""
    pods: dict[str, str]
    """Name → phase, node and what it waits for."""


class Status(Record):
    """The state of a cluster.

    `healthy`: it can be used. Fields that an unhealthy cluster cannot fill stay unset.
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
    """All clusters of the harness on this machine, this one included."""
    disk: dict[str, int]
    """Bytes: free where Docker lies, and what the harness's own folders take."""
    nodes: dict[str, str] = {}
    """Name → version of its kubelet."""
    controllers: dict[str, int] = {}
    """Namespace/name of a Deployment → ready pods."""
    queues: dict[str, int] = {}
    """Name of a ClusterQueue → Workloads that wait in it."""
    launches: list[LaunchStatus] = []

    def document(self) -> dict[str, Any]:
        """Return the document for --json, without fields that could not be asked."""
        return self.model_dump(exclude_unset=True)

    def text(self) -> str:
        """Return the text for a person, on one screen."""
        lines = [f"cluster      {self.cluster}: {self._condition()}"]
        lines += [f"kubeconfig   {self.kubeconfig}"] if self.kubeconfig else []
        lines += [f"node         {name}  {version}" for name, version in self.nodes.items()]
        lines += [f"controller   {name}  {ready} ready" for name, ready in self.controllers.items()]
        lines += [f"queue        {name}  {pending} pending" for name, pending in self.queues.items()]
        for launch in self.launches:
            lines.append(f"launch       {launch.namespace}/{launch.jobset}  {launch.state}")
            lines.append(f"  workload   {launch.workload}")
            lines += [f"  pod        {name}  {state}" for name, state in launch.pods.items()]
        disk = {name: amount(size) for name, size in self.disk.items()}
        taken = ", ".join(f"{name} {size}" for name, size in disk.items() if name != "free")
        lines.append(f"disk         {disk['free']} free; {taken}")
        others = [name for name in self.others if name != self.cluster]
        lines += [f"others       {', '.join(others)} (--cluster-name)"] if others else []
        return "\n".join(lines)

    def _condition(self) -> str:
        kept = ", kept" if self.kept else ""
        if self.healthy:
            return f"healthy, {self.phase}{kept}{', in use' if self.used else ''}"
        if self.created_by_harness and self.paused:
            return "paused (`harness resume`)"
        if self.created_by_harness:
            return f"not healthy, {self.phase}: {self.trouble} (`harness down` removes it)"
        return "there, but not made by the harness" if self.containers else "none (`harness up` makes one)"


def status(settings: Settings) -> Status:
    """Look at the cluster, its nodes, controllers, queues and launches, and at the disk."""
    kind = KindCluster(settings)
    state = kind.state()
    trouble = kind.trouble() if state is not None else None
    found = Status(
        cluster=kind.name,
        created_by_harness=state is not None,
        phase=state.phase if state else None,
        kept=state.kept if state else None,
        used=kind.used(),
        kubeconfig=str(kind.kubeconfig) if state else None,
        containers=kind.nodes(),
        paused=kind.paused(),
        healthy=state is not None and trouble is None,
        trouble=trouble.message if trouble else None,
        others=sorted(path.parent.name for path in kind.dir.parent.glob("*/state.json")),
        disk=_disk(settings),
    )
    if not found.healthy:
        return found
    kube = kind.kube()
    nodes = {n["metadata"]["name"]: n["status"]["nodeInfo"]["kubeletVersion"] for n in kube.ready_nodes()}
    controllers = {
        f"{d['metadata']['namespace']}/{d['metadata']['name']}": (d["status"].get("readyReplicas") or 0)
        for namespace in ("jobset-system", "kueue-system", "harness-system")
        for d in kube.objects("apps/v1", "Deployment", namespace)
    }
    found = found.model_copy(update={"nodes": nodes, "controllers": controllers})
    if state is None or state.phase != "ready":
        return found
    queues = {
        q["metadata"]["name"]: q["status"].get("pendingWorkloads", 0)
        for q in kube.objects("kueue.x-k8s.io/v1beta2", "ClusterQueue")
    }
    return found.model_copy(update={"queues": queues, "launches": launches(kube)})


def launches(kube: Kube) -> list[LaunchStatus]:
    """Return each JobSet, oldest first, with its state, what Kueue says of it, and its pods."""
    workloads = kube.objects("kueue.x-k8s.io/v1beta2", "Workload")
    pods = kube.objects("v1", "Pod", selector=NONCE_LABEL)
    jobsets = kube.objects("jobset.x-k8s.io/v1alpha2", "JobSet")
    return [
        LaunchStatus(
            namespace=(namespace := jobset["metadata"]["namespace"]),
            jobset=jobset["metadata"]["name"],
            state=(jobset.get("status") or {}).get("terminalState") or "not ended",
            workload=_said([w for w in workloads if w["metadata"]["namespace"] == namespace]),
            pods={p["metadata"]["name"]: _pod(p) for p in pods if p["metadata"]["namespace"] == namespace},
        )
        for jobset in sorted(jobsets, key=lambda j: str(j["metadata"].get("creationTimestamp")))
    ]


def _said(workloads: list[Object]) -> str:
    """Return why Kueue has not admitted it, or that it has."""
    for workload in workloads:
        for kind in ("Finished", "Evicted", "Admitted", "QuotaReserved"):
            said = condition(workload, kind)
            if said and (said["status"] == "True" or kind == "QuotaReserved"):
                told = said.get("message") or said.get("reason")
                return f"{kind}: {told}" if said["status"] == "True" else f"not admitted: {told}"
    return "Kueue says nothing"


def _pod(pod: Object) -> str:
    """Return where a pod is and what it waits for."""
    status, node = pod["status"], pod["spec"].get("nodeName", "no node")
    waiting = [
        f"{c['state']['waiting'].get('reason')}: {c['state']['waiting'].get('message', '')}".rstrip(": ")
        for c in status.get("containerStatuses") or []
        if "waiting" in (c.get("state") or {})
    ]
    unscheduled = condition(pod, "PodScheduled")
    waiting += [str(unscheduled.get("message"))] if unscheduled.get("status") == "False" else []
    return "; ".join([f"{status.get('phase')} on {node}", *waiting])


def _disk(settings: Settings) -> dict[str, int]:
    """Return bytes: free where Docker and the bundles are, and what the harness's own folders take."""
    rows = {"cache": settings.cache_dir, "runs": settings.runs_dir, "state": settings.state_dir}
    taken = {name: folder.size(path) for name, path in rows.items()}
    docker = Path("/var/lib/docker")
    return {"free": shutil.disk_usage(docker if docker.is_dir() else Path.cwd()).free, **taken}


def build_images(context: RunContext) -> dict[str, str]:
    """Build every image that a cluster needs, without making a cluster."""
    stack = resolve(context)
    worker = build_worker(stack, context, exact=True)
    tracker = build_tracker(stack, context)
    return {"node": stack.node_image, "worker": worker.tag, "tracker": tracker.tag}
