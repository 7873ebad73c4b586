"""Record what a launch can leave behind: objects in the cluster and in Docker, files, and processes."""

from __future__ import annotations

from pathlib import Path

from harness.core import processes
from harness.core.kubernetes import Kube, condition
from harness.launch.labels import NONCE_LABEL
from harness.provision.cluster import Ready
from harness.settings import Settings
from harness.soak.growth import Snapshot

SYSTEM = ("kube-system", "jobset-system", "kueue-system", "harness-system")
_SECONDS = 120


def take(ready: Ready, settings: Settings, folder: Path) -> Snapshot:
    """Take a snapshot. A process with `folder` in its environment counts as started by the soak.

    Raises ToolError, and the Kubernetes client's errors.
    """
    nodes = ready.kind.nodes()
    temporary = folder / "tmp"
    things = {
        **_in_cluster(ready.kube),
        "processes": _processes(folder),
        "temporary files": sorted(path.name for path in temporary.iterdir()),
        "hidden files in bundles": sorted(str(path) for path in folder.glob("launches/*/**/.*")),
        "launch folders": sorted(path.name for path in settings.state_dir.glob("launch-*")),
        "launch locks": sorted(path.name for path in (ready.kind.dir / "launches").glob("*")),
        **_in_docker(),
    }
    sizes = {
        **_memory(ready.kube, nodes),
        **{f"disk of node {node}": _node_disk(node) for node in nodes},
        "disk of state": _disk(settings.state_dir),
    }
    return Snapshot(things=things, sizes=sizes)


def _in_cluster(kube: Kube) -> dict[str, list[str]]:
    spaces = kube.objects("v1", "Namespace")
    launches = [s["metadata"]["name"] for s in spaces if NONCE_LABEL in (s["metadata"].get("labels") or {})]
    jobsets = kube.objects("jobset.x-k8s.io/v1alpha2", "JobSet")
    workloads = kube.objects("kueue.x-k8s.io/v1beta2", "Workload")
    running = [j for j in jobsets if not (j.get("status") or {}).get("terminalState")]
    waiting = [w for w in workloads if condition(w, "Finished").get("status") != "True"]
    return {
        "launch namespaces": launches,
        "other namespaces": [s["metadata"]["name"] for s in spaces if s["metadata"]["name"] not in launches],
        "open JobSets": [f"{j['metadata']['namespace']}/{j['metadata']['name']}" for j in running],
        "open Workloads": [f"{w['metadata']['namespace']}/{w['metadata']['name']}" for w in waiting],
    }


def _in_docker() -> dict[str, list[str]]:
    commands = {
        "containers": ["ps", "-a", "--no-trunc", "--format", "{{.Names}} {{.ID}}"],
        "networks": ["network", "ls", "--no-trunc", "--format", "{{.Name}} {{.ID}}"],
        "volumes": ["volume", "ls", "--format", "{{.Name}}"],
        "images": ["image", "ls", "-a", "--no-trunc", "--format", "{{.Repository}}:{{.Tag}} {{.ID}}"],
    }
    return {
        f"Docker {kind}": sorted(processes.run(["docker", *arguments], timeout=60).stdout.splitlines())
        for kind, arguments in commands.items()
    }


def _memory(kube: Kube, nodes: list[str]) -> dict[str, int]:
    """Return the resident memory in bytes, by node and controller container, as reported by the kubelets.

    The random suffix is removed from pod names, so that a name stays the same if the pod is recreated.
    """
    memory: dict[str, int] = {}
    for node in nodes:
        summary = kube.fetch(f"/api/v1/nodes/{node}/proxy/stats/summary").json()
        memory[f"memory of node {node}"] = int(summary["node"]["memory"].get("rssBytes") or 0)
        for pod in summary["pods"]:
            namespace, name = pod["podRef"]["namespace"], pod["podRef"]["name"]
            if namespace not in SYSTEM[1:]:
                continue
            for container in pod.get("containers") or []:
                key = f"memory of pod {namespace}/{name.rsplit('-', 2)[0]}/{container['name']}"
                memory[key] = int((container.get("memory") or {}).get("rssBytes") or 0)
    return memory


def _node_disk(node: str) -> int:
    """Return a node's disk usage, excluding etcd's write-ahead log, which grows in steps of 64 MiB."""
    script = "du -skx --exclude=wal /var 2>/dev/null | cut -f1"
    result = processes.run(["docker", "exec", node, "sh", "-c", script], timeout=_SECONDS)
    return int(result.stdout) * 1024


def _disk(folder: Path) -> int:
    sizes = []
    for path in folder.rglob("*"):
        try:
            sizes.append(path.lstat().st_size)
        except FileNotFoundError:  # Another process removed the file.
            continue
    return sum(sizes)


def _processes(folder: Path) -> list[str]:
    """Return the processes that were started with the soak's folder in their environment."""
    own = processes.started_with(str(folder))
    return sorted(f"{process.pid} {processes.command_line(process)}" for process in own)
