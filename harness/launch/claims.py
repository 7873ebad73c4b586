"""The volumes of a training: claims of one launch that all its pods share.

On a cluster of ours they are folders that all nodes share with this machine. On another one they are made of
a storage class, or they stand for claims that somebody else has made, whose volumes stay as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

from kubernetes.client.exceptions import ApiException

from harness.core.errors import HarnessError, UsageError
from harness.core.kubernetes import Kube, Object
from harness.launch.names import NONCE_LABEL
from harness.provision.cluster import SharedFolder
from harness.provision.controllers.queues import MANAGED

DATASETS, OUTPUTS, MODELS = "datasets-pvc", "outputs-pvc", "models-pvc"
CLAIMS = {DATASETS: "/data", OUTPUTS: "/out", MODELS: "/models"}
"""Claim → where it is mounted. The names are those of the guide."""
SIZE = "10Gi"
_MODES = ["ReadWriteMany"]


def of_folder(shared: SharedFolder, folder: str, namespace: str, nonce: str) -> Iterable[Object]:
    """Yield volumes in a folder below the shared one, and a claim for each."""
    for claim in CLAIMS:
        path = {"path": f"{shared.on_nodes}/{folder}/{claim}", "type": "DirectoryOrCreate"}
        yield _volume(claim, namespace, nonce, {"hostPath": path, "capacity": {"storage": SIZE}})
        yield _claim(claim, namespace, "", _volume_name(claim, nonce))


def of_class(name: str, namespace: str) -> Iterable[Object]:
    """Yield claims of a storage class. Their volumes go with the launch's namespace."""
    for claim in CLAIMS:
        yield _claim(claim, namespace, name, None)


def of_namespace(kube: Kube, theirs: str, namespace: str, nonce: str) -> Iterable[Object]:
    """Yield claims that stand for those of another namespace: their volumes a second time, to be retained.

    Raises HarnessError (cause launch.rejected) where a claim is missing, not bound, or not for many writers.
    """
    for claim in CLAIMS:
        found = kube.get("v1", "PersistentVolumeClaim", claim, theirs)
        name = ((found or {}).get("spec") or {}).get("volumeName")
        volume = kube.get("v1", "PersistentVolume", name) if name else None
        if volume is None:
            raise HarnessError(
                f"namespace {theirs}: a claim {claim} that is bound is expected; seen "
                f"{'one that is not bound' if found else 'none'}",
                hint="its pods share /data, /out and /models by three claims of many writers (ReadWriteMany)",
                cause="launch.rejected",
            )
        modes = volume["spec"].get("accessModes") or []
        if "ReadWriteMany" not in modes:
            raise HarnessError(
                f"namespace {theirs}: {claim} has the access modes {modes}; ReadWriteMany is expected",
                hint="pods on several nodes write into it",
                cause="launch.rejected",
            )
        kept = {"claimRef", "persistentVolumeReclaimPolicy", "storageClassName"}
        spec = {key: value for key, value in copy.deepcopy(volume["spec"]).items() if key not in kept}
        yield _volume(claim, namespace, nonce, spec)
        yield _claim(claim, namespace, "", _volume_name(claim, nonce))


def check(folder: str | None, storage_class: str | None, theirs: str | None, existing: bool) -> None:
    """Raise UsageError where what was asked for cannot be on this cluster."""
    if storage_class and theirs:
        raise UsageError("--storage-class makes claims, and --claims-namespace names some: one is expected")
    if existing and not (storage_class or theirs):
        raise UsageError(
            "a cluster of yours needs volumes that all pods share, and none was named",
            hint="--storage-class NAME (ReadWriteMany), or --claims-namespace NAMESPACE with "
            f"{', '.join(CLAIMS)}",
        )
    if folder and (existing or storage_class or theirs):
        raise UsageError("--volumes keeps a folder of a kind cluster; this launch has claims of its own")


def remove(kube: Kube, nonce: str) -> None:
    """Delete the volumes of a launch. What they stand for is not touched."""
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
            "accessModes": _MODES,
            "storageClassName": "",
            **spec,
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": namespace, "name": claim},
        },
    }


def _claim(claim: str, namespace: str, storage_class: str, volume: str | None) -> Object:
    bound = {"volumeName": volume} if volume else {}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim, "namespace": namespace},
        "spec": {
            "accessModes": _MODES,
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": SIZE}},
            **bound,
        },
    }
