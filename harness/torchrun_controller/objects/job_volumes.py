"""Build the volumes of a job: workspace, datasets, checkpoints and shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from kubernetes.utils.quantity import parse_quantity

from harness.core.kubernetes import Object
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.models import Claim, Storage, WorkspaceStorage
from harness.torchrun_controller.plan.gpu_layout import Plan, Refused

WORKSPACE_SIZE = "10Gi"


@dataclass(frozen=True)
class Volume:
    """A volume of a job's pods, with the path at which it is mounted and the claim to create, if any."""

    name: str
    source: Object
    path: str
    read_only: bool = False
    claim: Object | None = None
    ours: bool = False
    """Whether the claim is deleted with the job."""

    @property
    def used_by_archive_pod(self) -> bool:
        """Return whether the `<job>-sync-0` pod uses the claim. In this case, the job's own pods use emptyDir
        volumes."""
        return self.claim is not None and "emptyDir" in self.source


def workspace(
    job: str, requested: WorkspaceStorage | None, claim: Claim | None, plan: Plan, is_uploaded: bool
) -> Volume | None:
    """Return the volume for the job's code, or None if the job has no workspace.

    A job with one pod uses a claim. A job with several pods uses a claim only if the claim is ReadWriteMany.
    Otherwise each pod uses an emptyDir, because a ReadWriteOnce claim would force the pods onto one node. If
    `is_uploaded` is true, the user uploads the code. In this case, if the storage settings enable a claim
    that is not ReadWriteMany, only the pod `<job>-sync-0` uses the claim.
    """
    enabled = claim is not None and claim.enabled
    if requested is None and not enabled and not is_uploaded:
        return None
    storage = requested or WorkspaceStorage()
    path = storage.mount_path if requested else (claim and claim.mount_path) or storage.mount_path
    existing = storage.claim_name if storage.source == "existing" else claim and claim.claim_name
    if existing:
        return Volume("workspace", _claimed(existing), path)
    mode = storage.access_mode or (claim and claim.access_mode)
    is_separate = plan.nodes > 1 and mode != "ReadWriteMany"
    if is_separate and not (is_uploaded and enabled):
        return Volume("workspace", {"emptyDir": {}}, path)
    claim_spec = claim or Claim()
    sized_claim = Claim(
        size_per_gpu=storage.size
        if requested
        else (claim_spec.size_per_gpu or claim_spec.size or WORKSPACE_SIZE),
        storage_class=storage.storage_class or claim_spec.storage_class,
        access_mode=mode,
    )
    name = names.workspace_claim(job)
    if is_separate:
        sync_claim = _claim(name, sized_claim, plan, mode or "ReadWriteOnce")
        return Volume("workspace", {"emptyDir": {}}, path, claim=sync_claim, ours=True)
    return Volume("workspace", _claimed(name), path, claim=_claim(name, sized_claim, plan), ours=True)


def lasting(job: str, queue: str, storage: Storage, plan: Plan) -> list[Volume]:
    """Return the volumes for datasets and checkpoints.

    Datasets are read-only, and have one claim per queue. Checkpoints have one claim per job name. Both claims
    are kept after the job is deleted.
    """
    volumes = []
    for kind, claim, default, read_only in (
        ("datasets", storage.datasets, f"{queue}{names.DATASETS}", True),
        ("checkpoints", storage.checkpoints, f"{job}-checkpoints", False),
    ):
        if claim is None or not (claim.enabled or claim.claim_name):
            continue
        name = claim.claim_name or default
        document = None if claim.claim_name else _claim(name, claim, plan)
        volumes.append(Volume(kind, _claimed(name), claim.mount_path or f"/{kind}", read_only, document))
    return volumes


def shared_memory(storage: Storage, plan: Plan) -> Volume | None:
    """Return the volume for /dev/shm.

    Its size is shmSizePerGPU times the number of GPUs, or shmSizePerGPU for a job without GPUs.
    """
    if storage.shm_size_per_gpu is None:
        return None
    size = bytes_of(storage.shm_size_per_gpu, max(plan.gpus, 1))
    return Volume("dshm", {"emptyDir": {"medium": "Memory", "sizeLimit": size}}, "/dev/shm")  # noqa: S108


def bytes_of(quantity: str | int, times: int) -> str:
    """Return a Kubernetes quantity multiplied by `times`, in mebibytes if that is a whole number, otherwise
    in bytes."""
    amount = parse_quantity(quantity) * times
    return f"{int(amount / 2**20)}Mi" if amount % 2**20 == 0 else str(int(amount.to_integral_value()))


def _claimed(name: str) -> Object:
    return {"persistentVolumeClaim": {"claimName": name}}


def _claim(name: str, claim: Claim, plan: Plan, access_mode: str | None = None) -> Object:
    """Return a claim for the job's pods.

    `access_mode` is the claim's access mode if a single pod uses the claim, otherwise None.
    """
    mode = access_mode or claim.access_mode or ("ReadWriteMany" if plan.nodes > 1 else "ReadWriteOnce")
    if access_mode is None and plan.nodes > 1 and mode in ("ReadWriteOnce", "ReadWriteOncePod"):
        raise Refused(
            "AccessMode",
            f"claim {name} is {mode}, which would put the job's {plan.nodes} "
            "pods on one node: expected ReadWriteMany",
        )
    if claim.size is not None:
        size = bytes_of(claim.size, 1)
    elif claim.size_per_gpu is not None:
        size = bytes_of(claim.size_per_gpu, max(plan.gpus * plan.nodes, 1))
    else:
        raise Refused("ClaimSize", f"claim {name} has no size: expected size, sizePerGPU or claimName")
    if parse_quantity(size) <= Decimal(0):
        raise Refused("ClaimSize", f"claim {name} has size {size}: expected more than 0")
    storage_class = {"storageClassName": claim.storage_class} if claim.storage_class else {}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": [mode], "resources": {"requests": {"storage": size}}, **storage_class},
    }
