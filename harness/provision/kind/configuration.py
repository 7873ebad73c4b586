"""The configuration of kind, and why it differs from kind's own defaults."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from harness.provision.images import unpacked
from harness.settings import Settings

VOLUMES_MOUNT = "/harness-volumes"
"""A folder that all nodes share: what a claim of many writers is on a real cluster."""


def configuration(
    settings: Settings, node_image: str, containerd_patches: Sequence[str], images: Path, volumes: Path
) -> dict[str, object]:
    """Return kind.yaml. The nodes see the unpacked `images`, and write into the folder `volumes`.

    Three kubelet settings matter: a longer syncFrequency delays Kueue's certificate by a minute, a smaller
    containerLogMaxSize rotates the log away from its follower, and cgroup v1 must be allowed by name.
    """
    node = {
        "image": node_image,
        "extraMounts": [
            {"hostPath": str(images), "containerPath": unpacked.MOUNT, "readOnly": True},
            {"hostPath": str(volumes.resolve()), "containerPath": VOLUMES_MOUNT},
        ],
    }
    kubelet: dict[str, object] = {
        "kind": "KubeletConfiguration",
        "syncFrequency": "3s",
        "containerLogMaxSize": "500Mi",
    }
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        kubelet["failCgroupV1"] = False
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": settings.cluster_name,
        "networking": {"apiServerPort": settings.api_port},
        "kubeadmConfigPatches": [yaml.safe_dump(kubelet)],
        "containerdConfigPatches": list(containerd_patches),
        "nodes": [{"role": "control-plane", **node}]
        + [{"role": "worker", **node} for _ in range(settings.workers)],
    }
