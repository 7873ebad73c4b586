"""Questions about what is there: a cluster's state, a bundle, logs of a launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.cluster.kind import KindCluster
from harness.errors import UsageError
from harness.evidence.reader import Bundle
from harness.images.build import build_tracker, build_worker
from harness.images.stack import resolve
from harness.settings import Settings
from workers.truth_frames import MARK


def status(settings: Settings) -> dict[str, Any]:
    """One document: cluster, nodes, controllers, queues, launches. `healthy` says whether it can be used."""
    kind = KindCluster(settings)
    state = kind.state()
    found: dict[str, Any] = {
        "cluster": kind.name,
        "created_by_harness": state is not None,
        "phase": state.phase if state else None,
        "kubeconfig": str(kind.kubeconfig) if state else None,
        "containers": kind.nodes(),
        "healthy": kind.healthy(),
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
    found["launches"] = [
        {
            "namespace": j["metadata"]["namespace"],
            "jobset": j["metadata"]["name"],
            "state": (j.get("status") or {}).get("terminalState") or "not ended",
        }
        for j in kube.objects("jobset.x-k8s.io/v1alpha2", "JobSet")
    ]
    return found


def render(found: dict[str, Any]) -> str:
    """The same for a person."""
    lines = [f"cluster      {found['cluster']}: {_condition(found)}"]
    lines += [f"kubeconfig   {found['kubeconfig']}"] if found["kubeconfig"] else []
    lines += [f"node         {name}  {version}" for name, version in found.get("nodes", {}).items()]
    lines += [f"controller   {name}  {ready} ready" for name, ready in found.get("controllers", {}).items()]
    lines += [f"queue        {name}  {pending} pending" for name, pending in found.get("queues", {}).items()]
    for launch in found.get("launches", []):
        lines.append(f"launch       {launch['namespace']}/{launch['jobset']}  {launch['state']}")
    return "\n".join(lines)


def _condition(found: dict[str, Any]) -> str:
    if found["healthy"]:
        return f"healthy, {found['phase']}"
    if found["created_by_harness"]:
        return f"not healthy, {found['phase']}; `harness down` removes it"
    return "there, but not made by the harness" if found["containers"] else "none (`harness up` makes one)"


def bundle(path: Path) -> Bundle:
    """A bundle that a user named. Raises UsageError when it is none."""
    if not (path / "manifest.json").is_file():
        raise UsageError(f"{path} is not a bundle: it has no manifest.json", hint="harness runs lists them")
    return Bundle.open(path)


def log_lines(launch: Bundle, rank: int | None) -> Iterator[str]:
    """Lines of the ranks' logs as "node rank | time | line", without ground-truth frames."""
    ranks = launch.ranks()
    wanted = None if rank is None or rank not in ranks else ranks[rank].index
    if rank is not None and wanted is None:
        raise UsageError(f"the bundle has no pod of rank {rank}", hint=f"ranks with a pod: {list(ranks)}")
    for index, pod in launch.pods().items():
        if wanted not in (None, index):
            continue
        for path in sorted((launch.path / "logs").glob(f"{pod.name}-*.log")):
            for line in path.read_text(errors="replace").splitlines():
                stamp, _, text = line.partition(" ")
                if MARK not in text:
                    yield f"{index} | {stamp[11:23]} | {text}"


def build_images(settings: Settings, progress: Callable[[str], None]) -> dict[str, str]:
    """Everything a cluster needs, without making one."""
    stack = resolve(settings, progress)
    worker, tracker = (build(stack, settings, progress) for build in (build_worker, build_tracker))
    return {"node": stack.node_image, "worker": worker.tag, "tracker": tracker.tag}
