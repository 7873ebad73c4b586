"""What is there: a cluster, its controllers, queues and launches, and the room that all of it takes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from harness.context import RunContext
from harness.core.kubernetes import Kube, Object, condition
from harness.evidence import folder
from harness.launch.names import NONCE_LABEL
from harness.provision.images.build import build_tracker, build_worker
from harness.provision.images.stack import resolve
from harness.provision.kind.cluster import KindCluster
from harness.report.runs import amount
from harness.settings import Settings


def status(settings: Settings) -> dict[str, Any]:
    """One document: cluster, nodes, controllers, queues, launches, disk. `healthy`: it can be used."""
    kind = KindCluster(settings)
    state = kind.state()
    trouble = kind.trouble() if state is not None else None
    found: dict[str, Any] = {
        "cluster": kind.name,
        "created_by_harness": state is not None,
        "phase": state.phase if state else None,
        "kept": state.kept if state else None,
        "used": kind.used(),
        "kubeconfig": str(kind.kubeconfig) if state else None,
        "containers": kind.nodes(),
        "paused": kind.paused(),
        "healthy": state is not None and trouble is None,
        "trouble": trouble.message if trouble else None,
        "others": sorted(path.parent.name for path in kind.dir.parent.glob("*/state.json")),
        "disk": _disk(settings),
    }
    if not found["healthy"]:
        return found
    kube = kind.kube()
    found["nodes"] = {
        n["metadata"]["name"]: n["status"]["nodeInfo"]["kubeletVersion"] for n in kube.ready_nodes()
    }
    found["controllers"] = {
        f"{d['metadata']['namespace']}/{d['metadata']['name']}": (d["status"].get("readyReplicas") or 0)
        for namespace in ("jobset-system", "kueue-system", "harness-system")
        for d in kube.objects("apps/v1", "Deployment", namespace)
    }
    if state is None or state.phase != "ready":
        return found
    found["queues"] = {
        q["metadata"]["name"]: q["status"].get("pendingWorkloads", 0)
        for q in kube.objects("kueue.x-k8s.io/v1beta2", "ClusterQueue")
    }
    found["launches"] = launches(kube)
    return found


def launches(kube: Kube) -> list[dict[str, Any]]:
    """Each JobSet, the oldest first, with its state, what Kueue says of it, and its pods."""
    workloads = kube.objects("kueue.x-k8s.io/v1beta2", "Workload")
    pods = kube.objects("v1", "Pod", selector=NONCE_LABEL)
    found = []
    jobsets = kube.objects("jobset.x-k8s.io/v1alpha2", "JobSet")
    for jobset in sorted(jobsets, key=lambda j: str(j["metadata"].get("creationTimestamp"))):
        namespace, name = jobset["metadata"]["namespace"], jobset["metadata"]["name"]
        found.append(
            {
                "namespace": namespace,
                "jobset": name,
                "state": (jobset.get("status") or {}).get("terminalState") or "not ended",
                "workload": _said([w for w in workloads if w["metadata"]["namespace"] == namespace]),
                "pods": {
                    p["metadata"]["name"]: _pod(p) for p in pods if p["metadata"]["namespace"] == namespace
                },
            }
        )
    return found


def _said(workloads: list[Object]) -> str:
    """Why Kueue has not let it run, or that it has."""
    for workload in workloads:
        for kind in ("Finished", "Evicted", "Admitted", "QuotaReserved"):
            said = condition(workload, kind)
            if said and (said["status"] == "True" or kind == "QuotaReserved"):
                told = said.get("message") or said.get("reason")
                return f"{kind}: {told}" if said["status"] == "True" else f"not admitted: {told}"
    return "Kueue says nothing"


def _pod(pod: Object) -> str:
    """Where it is and what it waits for."""
    status, node = pod["status"], pod["spec"].get("nodeName", "no node")
    waiting = [
        f"{c['state']['waiting'].get('reason')}: {c['state']['waiting'].get('message', '')}".rstrip(": ")
        for c in status.get("containerStatuses") or []
        if "waiting" in (c.get("state") or {})
    ]
    unscheduled = condition(pod, "PodScheduled")
    waiting += [str(unscheduled.get("message"))] if unscheduled.get("status") == "False" else []
    return "; ".join([f"{status.get('phase')} on {node}", *waiting])


def _disk(settings: Settings) -> dict[str, Any]:
    """Bytes: free where Docker and the bundles lie, and what the harness's own folders take."""
    rows = {"cache": settings.cache_dir, "runs": settings.runs_dir, "state": settings.state_dir}
    taken = {name: folder.size(path) for name, path in rows.items()}
    docker = Path("/var/lib/docker")
    return {"free": shutil.disk_usage(docker if docker.is_dir() else Path.cwd()).free, **taken}


def render(found: dict[str, Any]) -> str:
    """The same for a person, on one screen."""
    lines = [f"cluster      {found['cluster']}: {_condition(found)}"]
    lines += [f"kubeconfig   {found['kubeconfig']}"] if found["kubeconfig"] else []
    lines += [f"node         {name}  {version}" for name, version in found.get("nodes", {}).items()]
    lines += [f"controller   {name}  {ready} ready" for name, ready in found.get("controllers", {}).items()]
    lines += [f"queue        {name}  {pending} pending" for name, pending in found.get("queues", {}).items()]
    for launch in found.get("launches", []):
        lines.append(f"launch       {launch['namespace']}/{launch['jobset']}  {launch['state']}")
        lines.append(f"  workload   {launch['workload']}")
        lines += [f"  pod        {name}  {state}" for name, state in launch["pods"].items()]
    disk = {name: amount(size) for name, size in found["disk"].items()}
    lines.append(f"disk         {disk.pop('free')} free; " + ", ".join(f"{n} {s}" for n, s in disk.items()))
    others = [name for name in found["others"] if name != found["cluster"]]
    lines += [f"others       {', '.join(others)} (--cluster-name)"] if others else []
    return "\n".join(lines)


def _condition(found: dict[str, Any]) -> str:
    kept = ", kept" if found["kept"] else ""
    if found["healthy"]:
        return f"healthy, {found['phase']}{kept}{', in use' if found['used'] else ''}"
    if found["created_by_harness"] and found["paused"]:
        return "paused (`harness resume`)"
    if found["created_by_harness"]:
        return f"not healthy, {found['phase']}: {found['trouble']} (`harness down` removes it)"
    return "there, but not made by the harness" if found["containers"] else "none (`harness up` makes one)"


def build_images(context: RunContext) -> dict[str, str]:
    """Everything a cluster needs, without making one."""
    stack = resolve(context)
    worker = build_worker(stack, context, exact=True)
    tracker = build_tracker(stack, context)
    return {"node": stack.node_image, "worker": worker.tag, "tracker": tracker.tag}
