"""The configuration for kind, with the reasons for values that differ from kind's defaults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from harness.provision.images import unpacked
from harness.settings import Settings

VOLUMES_MOUNT = "/harness-volumes"
"""Mount path of the folder that all nodes share. It replaces the ReadWriteMany volume of a real cluster."""

_ALONE = {"leader-elect": "false"}
"""With a single control plane, leader election is not needed.

An election takes seconds at the first start, because the roles do not exist yet. After a pause, it takes 15 s
until the old lease has expired. Renewing the leases also needs two writes every two seconds.
"""
_UNTHROTTLED = {"kube-api-qps": "200", "kube-api-burst": "400"}
"""The controller manager first creates an account for each of its controllers.

With the default limit of 20 requests per second, that takes 5 s, during which no pod is created.
"""

_ELECTED_SOON = {"heartbeat-interval": "20", "election-timeout": "200"}
"""Options of etcd in milliseconds, so that it elects its leader sooner.

At each start, the API server waits until the only member of etcd has elected itself, which takes up to one
election timeout (a second by default). Frequent heartbeats cost nothing, because they go only to other
members.
"""


def configuration(
    settings: Settings,
    node_image: str,
    containerd_patches: Sequence[str],
    images: Path | None,
    volumes: Path,
) -> dict[str, object]:
    """Return the content of kind.yaml. Nodes mount the unpacked `images` and the writable folder `volumes`.

    `images` is None if the nodes cannot mount them.

    Three settings of the kubelet matter: a longer syncFrequency delays Kueue's certificate by a minute, a
    smaller containerLogMaxSize rotates logs before they are read, and cgroup v1 must be allowed explicitly.
    """
    mounts: list[dict[str, object]] = [
        {"hostPath": str(volumes.resolve()), "containerPath": VOLUMES_MOUNT},
    ]
    if images is not None:
        mounts.insert(0, {"hostPath": str(images), "containerPath": unpacked.MOUNT, "readOnly": True})
    node = {"image": node_image, "extraMounts": mounts}
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
        "kubeadmConfigPatches": [yaml.safe_dump(each) for each in (kubelet, *_control_plane())],
        "containerdConfigPatches": list(containerd_patches),
        "nodes": [{"role": "control-plane", **node}]
        + [{"role": "worker", **node} for _ in range(settings.workers)],
    }


def _control_plane() -> Iterator[dict[str, object]]:
    """Yield a ClusterConfiguration that makes the control plane start faster, in both formats of kubeadm.

    kind applies a patch only to a document with the same apiVersion. A list of arguments replaces kind's
    list, so kind's own arguments are repeated.
    """
    manager = {"enable-hostpath-provisioner": "true", **_ALONE, **_UNTHROTTLED}
    for version, arguments, more in (
        (
            "v1beta4",
            lambda given: [{"name": name, "value": value} for name, value in given.items()],
            {"encryptionAlgorithm": "ECDSA-P256"},  # ten RSA keys take 2 s of CPU time
        ),
        ("v1beta3", dict, {}),
    ):
        yield {
            "apiVersion": f"kubeadm.k8s.io/{version}",
            "kind": "ClusterConfiguration",
            "controllerManager": {"extraArgs": arguments(manager)},
            "scheduler": {"extraArgs": arguments(_ALONE)},
            "etcd": {"local": {"extraArgs": arguments(_ELECTED_SOON)}},
            **more,
        }
