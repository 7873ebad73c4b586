"""The fields shared by queues and jobs: rendezvous, scheduling, volumes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.torchrun_controller.api.field_types import (
    Anything,
    Labels,
    Name,
    Named,
    Quantity,
    Spec,
    Word,
    positive,
    rules,
)

Backend = Literal["nccl", "gloo", "mpi"]
Rendezvous = Literal["c10d", "static", "etcd-v2"]
AccessMode = Literal["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod"]
PullPolicy = Literal["Always", "IfNotPresent", "Never"]
Port = Annotated[int, Field(ge=1024, le=65535)]


class Distributed(Spec):
    """The rendezvous of a job's nodes. Fields that a job omits are inherited from its queue."""

    backend: Backend | None = None
    rdzv_backend: Rendezvous | None = None
    rdzv_endpoint: Annotated[str, Field(max_length=1024)] | None = None
    port: Port | None = None


class Scheduling(Spec):
    """The nodes on which pods may run, and their priority."""

    scheduler: Word | None = None
    priority_class_name: Word | None = None
    node_selector: Labels = Field(default_factory=dict)
    affinity: Anything | None = None
    tolerations: Annotated[list[Anything], Field(max_length=64)] = Field(default_factory=list)


class Claim(Spec):
    """A volume for a job. `claimName` names an existing claim."""

    model_config = rules(*positive("size", "sizePerGPU"))

    enabled: bool = False
    size_per_gpu: Annotated[Quantity | None, Field(alias="sizePerGPU")] = None
    size: Quantity | None = None
    storage_class: Word | None = None
    access_mode: AccessMode | None = None
    mount_path: Word | None = None
    claim_name: Name | None = None


class Storage(Spec):
    """A job's volumes. The workspace is deleted with the job; datasets and checkpoints are kept."""

    shm_size_per_gpu: Annotated[Quantity | None, Field(alias="shmSizePerGPU")] = None
    workspace: Claim | None = None
    datasets: Claim | None = None
    checkpoints: Claim | None = None


class Mount(Spec):
    """An additional mount in the container `trainer`."""

    name: Name
    mount_path: Word
    sub_path: Word | None = None
    read_only: bool = False


class Volumes(Spec):
    """A job's additional volumes."""

    additional_mounts: Annotated[list[Mount], Field(max_length=64)] = Field(default_factory=list)
    additional_volumes: Annotated[list[Named], Field(max_length=64)] = Field(default_factory=list)
