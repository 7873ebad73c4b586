"""Nodes without machines, kept alive by KWOK's controller: a process on this host.

A taint keeps away all pods that do not tolerate it. A DaemonSet that tolerates everything, as kube-proxy,
gets a simulated pod there.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.core.kubernetes import Kube
from harness.provision.source.kwok import Kwok

MARK = "kwok.x-k8s.io/node"
"""Annotation, label and taint of a simulated node, each with the value `fake`."""
TOLERATION = {"key": MARK, "operator": "Equal", "value": "fake", "effect": "NoSchedule"}


def node(name: str, gpus: int) -> dict[str, Any]:
    """Return a node with GPUs for the API server."""
    resources = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(gpus)}
    marked = {MARK: "fake"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": marked,
            "labels": {**marked, "kubernetes.io/hostname": name},
        },
        "spec": {"taints": [{"key": MARK, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": resources, "capacity": resources},
    }


@contextmanager
def simulated(kube: Kube, kwok: Kwok, log: Path, names: list[str], gpus: int) -> Iterator[None]:
    """Have the nodes while the block runs. Then remove them, and end the controller."""
    command = [
        str(kwok.program),
        f"--config={kwok.stages}",
        f"--kubeconfig={kube.kubeconfig}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={MARK}=fake",
        "--server-address=",
        # Without leases Kubernetes takes each node for lost after 50 s, and its pods for not ready.
        "--node-lease-duration-seconds=40",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            nodes = kube.resource("v1", "Node")
            for name in names:
                nodes.create(body=node(name, gpus))
            kube.wait(
                "the simulated nodes Ready",
                "v1",
                "Node",
                _all_ready(names, process, log),
                seconds=120,
                selector=MARK,
            )
            assert process.poll() is None, log.read_text()
            yield
        finally:
            for name in names:
                kube.delete("v1", "Node", name)
            process.terminate()
            process.wait(timeout=30)


def _all_ready(names: list[str], process: subprocess.Popen[bytes], log: Path) -> Any:
    def done(seen: dict[str, Any]) -> str | None:
        assert process.poll() is None, log.read_text()
        late = [name for name in names if not _ready(seen.get(name, {}))]
        return f"{len(late)} of {len(names)} are not Ready" if late else None

    return done


def _ready(item: dict[str, Any]) -> bool:
    conditions = item.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
