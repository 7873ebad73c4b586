"""Create the volumes of a training job, and the claims (PersistentVolumeClaims) that its pods mount.

On a harness cluster, the volumes are folders that all nodes share with this machine. On an existing cluster,
a storage class provides them, or they are the volumes of the user's existing claims. The pods write only to
the user's volume for outputs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kubernetes.client.exceptions import ApiException

from harness.core.errors import UsageError
from harness.core.kubernetes import Kube, Object
from harness.launch.labels import NONCE_LABEL
from harness.provision.cluster import SharedFolder
from harness.provision.controllers.queues import MANAGED

DATASETS, OUTPUTS, MODELS = "datasets-pvc", "outputs-pvc", "models-pvc"
CLAIMS = {DATASETS: "/data", OUTPUTS: "/out", MODELS: "/models"}
"""Maps the name of each claim that a training job uses to its mount path."""
SIZE = "10Gi"
MANY, READERS, ONE_NODE = "ReadWriteMany", "ReadOnlyMany", "ReadWriteOnce"
_CLASS = ("storage.k8s.io/v1", "StorageClass")


@dataclass(frozen=True)
class Mount:
    """A folder in the pods, and the claim whose volume is mounted there."""

    claim: str
    path: str
    read_only: bool = False
    folder: str = ""
    """The path of the mounted folder in the volume. An empty string means the whole volume."""
    optional: bool = False
    """Whether the mount is omitted if the claim does not exist."""


@dataclass(frozen=True)
class Claimed:
    """A user's claim, and the volume that is bound to it."""

    mount: Mount
    volume: Object
    mode: str
    """The access mode with which the pods mount the volume."""


def mounts(pod_mounts: Iterable[Mount]) -> list[Object]:
    """Return a container's volumeMounts."""
    return [
        {
            "name": one.claim,
            "mountPath": one.path,
            **({"subPath": one.folder} if one.folder else {}),
            **({"readOnly": True} if one.read_only else {}),
        }
        for one in pod_mounts
    ]


def pod_volumes(pod_mounts: Sequence[Mount]) -> list[Object]:
    """Return a pod's volumes, one for each claim. A volume is read-only if all its mounts are."""
    writable = {one.claim for one in pod_mounts if not one.read_only}
    return [
        {
            "name": claim,
            "persistentVolumeClaim": {
                "claimName": claim,
                **({} if claim in writable else {"readOnly": True}),
            },
        }
        for claim in dict.fromkeys(one.claim for one in pod_mounts)
    ]


def of_folder(shared: SharedFolder, folder: str, namespace: str, nonce: str) -> Iterable[Object]:
    """Yield a PersistentVolume in the shared folder and a claim for it, for each name in CLAIMS."""
    for claim in CLAIMS:
        path = {"path": f"{shared.on_nodes}/{folder}/{claim}", "type": "DirectoryOrCreate"}
        spec = {"hostPath": path, "capacity": {"storage": SIZE}, "accessModes": [MANY]}
        yield _volume(claim, namespace, nonce, spec)
        yield _claim(claim, namespace, "", _volume_name(claim, nonce))


def make_folders(shared: SharedFolder, folder: str) -> None:
    """Create the folders for a launch's volumes, so that pods running as any user can write to them.

    Otherwise, the kubelet would create the folders as root. Other users on this machine cannot access the
    folders.
    """
    parent = shared.local_path / folder
    parent.mkdir(parents=True, exist_ok=True)
    parent.chmod(0o700)
    for claim in CLAIMS:
        (parent / claim).mkdir(exist_ok=True)
        (parent / claim).chmod(0o777)


def of_class(name: str, pod_mounts: Iterable[Mount], namespace: str | None = None) -> Iterable[Object]:
    """Yield ReadWriteMany claims for a storage class. A launch's claims are deleted with its namespace."""
    for claim in dict.fromkeys(one.claim for one in pod_mounts):
        yield _claim(claim, namespace, name, None)


def of_namespace(claims: Iterable[Claimed], namespace: str, nonce: str) -> Iterable[Object]:
    """Yield claims that use the same volumes as claims in another namespace.

    Each new claim is bound to a copy of the other claim's PersistentVolume object. The copies have the
    reclaim policy Retain.
    """
    for one in claims:
        claim = one.mount.claim
        omitted_fields = {"claimRef", "persistentVolumeReclaimPolicy", "storageClassName"}
        spec = {
            key: value
            for key, value in copy.deepcopy(one.volume["spec"]).items()
            if key not in omitted_fields
        }
        yield _volume(claim, namespace, nonce, spec)
        yield _claim(claim, namespace, "", _volume_name(claim, nonce), one.mode)


def read(kube: Kube, namespace: str, pod_mounts: Sequence[Mount], pods: int) -> list[Claimed]:
    """Return the claims in `namespace` that the pods mount. Missing optional claims are omitted.

    `pods` is the number of pods. Raises UsageError if a required claim is missing, or if a claim is not bound
    or has no suitable access mode.
    """
    claimed: dict[str, Claimed] = {}
    for mount in pod_mounts:
        if mount.claim in claimed:
            continue
        claim = kube.get("v1", "PersistentVolumeClaim", mount.claim, namespace)
        if claim is None and mount.optional:
            continue
        name = ((claim or {}).get("spec") or {}).get("volumeName")
        volume = kube.get("v1", "PersistentVolume", name) if name else None
        if volume is None:
            raise UsageError(
                f"--claims-namespace {namespace}: expected a bound claim {mount.claim}, but this claim "
                f"{'is not bound' if claim else 'does not exist'}",
                hint=_hint(mount, namespace),
            )
        writes = any(not one.read_only for one in pod_mounts if one.claim == mount.claim)
        claimed[mount.claim] = Claimed(mount, volume, _mode(namespace, mount, volume, pods if writes else 0))
    return list(claimed.values())


def _hint(mount: Mount, namespace: str) -> str:
    if mount.claim == DATASETS:
        return "create or bind this claim, or use --synthetic, which trains on generated text"
    if mount.claim == MODELS:
        return "create or bind this claim: a trainer option names a folder in /models, which is on this claim"
    return (
        "create or bind this claim, which stores the checkpoints; list claims with `kubectl get pvc -n "
        f"{namespace}`"
    )


def _mode(namespace: str, mount: Mount, volume: Object, writers: int) -> str:
    """Return the access mode for a mount to which `writers` pods write. Raises UsageError if there is
    none."""
    modes = list((volume.get("spec") or {}).get("accessModes") or [])
    accepted_modes = [MANY] if writers > 1 else [MANY, ONE_NODE] if writers else [READERS, MANY, ONE_NODE]
    mode = next((one for one in accepted_modes if one in modes), None)
    if mode is not None:
        return mode
    reason = (
        f"{writers} pods write to it"
        if writers > 1
        else "one pod writes to it"
        if writers
        else "pods read it"
    )
    raise UsageError(
        f"--claims-namespace {namespace}: {mount.claim} needs the access mode "
        f"{' or '.join(accepted_modes)}, because {reason}; found {', '.join(modes) or 'none'}",
        hint="create a claim with this name and the needed access mode"
        + (", or use --replicas 1" if writers > 1 and ONE_NODE in modes else ""),
    )


def on_one_node(claims: Iterable[Claimed]) -> bool:
    """Return whether all pods must run on one node, because a volume can be attached to only one node."""
    return any(one.mode == ONE_NODE for one in claims)


def prove_class(kube: Kube, name: str) -> None:
    """Raise UsageError if the cluster has no storage class named `name`."""
    if kube.get(*_CLASS, name) is None:
        classes = sorted(each["metadata"]["name"] for each in kube.objects(*_CLASS))
        raise UsageError(
            f"--storage-class {name}: the cluster has no such StorageClass; existing ones: "
            f"{', '.join(classes) or 'none'}",
            hint="use a StorageClass whose volumes support ReadWriteMany",
        )


def check(folder: str | None, storage_class: str | None, namespace: str | None, existing: bool) -> None:
    """Raise UsageError if the options are incompatible with each other or with the cluster."""
    if storage_class and namespace:
        raise UsageError(
            "use only one of --storage-class, which creates claims, and --claims-namespace, which names "
            "existing claims"
        )
    if existing and not (storage_class or namespace):
        raise UsageError(
            "on your own cluster, training needs a volume that all pods share, but no option specifies one",
            hint=f"use --storage-class NAME (with {MANY}), or --claims-namespace with a namespace that has "
            "the claims "
            f"{OUTPUTS} and {DATASETS}",
        )
    if folder and (existing or storage_class or namespace):
        raise UsageError("--volumes applies only to kind, but this launch uses volume claims")


def remove(kube: Kube, nonce: str) -> None:
    """Delete a launch's PersistentVolumes. The data is kept."""
    for claim in CLAIMS:
        try:
            kube.delete("v1", "PersistentVolume", _volume_name(claim, nonce))
        except ApiException as error:
            if error.status not in (403, 404):
                raise


def _volume_name(claim: str, nonce: str) -> str:
    return f"e2e-{nonce}-{claim.removesuffix('-pvc')}"


def _volume(claim: str, namespace: str, nonce: str, spec: Object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": _volume_name(claim, nonce), "labels": {**MANAGED, NONCE_LABEL: nonce}},
        "spec": {
            "storageClassName": "",
            **spec,
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": namespace, "name": claim},
        },
    }


def _claim(
    claim: str, namespace: str | None, storage_class: str, volume: str | None, mode: str = MANY
) -> Object:
    volume_name = {"volumeName": volume} if volume else {}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim, **({"namespace": namespace} if namespace else {})},
        "spec": {
            "accessModes": [mode],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": SIZE}},
            **volume_name,
        },
    }
