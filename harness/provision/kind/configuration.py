"""Build kind's configuration, and explain the values that differ from kind's defaults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from harness.provision.images import unpacked
from harness.settings import Settings

VOLUMES_MOUNT = "/harness-volumes"
"""The path at which nodes mount the folder that all nodes share. This folder replaces the ReadWriteMany
volume of a real cluster."""

_ALONE = {"leader-elect": "false"}
"""The option that disables leader election, which a single control plane does not need.

At the first start, an election would take seconds, because its roles do not exist yet. When a paused cluster
is started again, a component would wait 15 s for its old lease to expire. Renewing the leases would also
cause two writes every two seconds.
"""
_UNTHROTTLED = {"kube-api-qps": "200", "kube-api-burst": "400"}
"""Limits, in requests per second, on the controller manager's requests to the API server. At startup, the
controller manager creates a service account for each of its controllers. With the default limit of 20, this
takes 5 s, during which no pod is created."""

_ELECTED_SOON = {"heartbeat-interval": "20", "election-timeout": "200"}
"""etcd options, in milliseconds, that make its leader election faster.

On each start, the API server waits until the only etcd member has elected itself, which takes up to one
election timeout (a second by default). Frequent heartbeats cost nothing, because they are sent only to other
members.
"""


def configuration(
    settings: Settings,
    node_image: str,
    containerd_patches: Sequence[str],
    images: Path | None,
    volumes: Path,
) -> dict[str, object]:
    """Return the content of kind.yaml.

    The nodes mount the writable folder `volumes`. If `images` is not None, it is the host path of the volume
    of unpacked images, which the nodes then mount as well.

    Three kubelet settings differ from the defaults. The default syncFrequency would delay Kueue's certificate
    by a minute. The default containerLogMaxSize would rotate logs before they are read. On a machine with
    cgroup v1, the kubelet would not start by default.
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
    """Yield a ClusterConfiguration that makes the control plane start faster, in both kubeadm formats.

    kind applies a patch only to a document with the same apiVersion. An argument list replaces kind's list,
    so kind's own arguments are repeated here.
    """
    manager = {"enable-hostpath-provisioner": "true", **_ALONE, **_UNTHROTTLED}
    for version, arguments, extra in (
        (
            "v1beta4",
            lambda args: [{"name": name, "value": value} for name, value in args.items()],
            # By default, kubeadm generates ten RSA keys, which takes 2 s of CPU time.
            {"encryptionAlgorithm": "ECDSA-P256"},
        ),
        ("v1beta3", dict, {}),
    ):
        yield {
            "apiVersion": f"kubeadm.k8s.io/{version}",
            "kind": "ClusterConfiguration",
            "controllerManager": {"extraArgs": arguments(manager)},
            "scheduler": {"extraArgs": arguments(_ALONE)},
            "etcd": {"local": {"extraArgs": arguments(_ELECTED_SOON)}},
            **extra,
        }
