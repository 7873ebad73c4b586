"""What queues and jobs share: how nodes meet, where pods run, volumes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.torchrun_controller.api.fields import (
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
    """How the nodes of a job meet. What a job leaves out is its queue's."""

    backend: Backend | None = None
    rdzv_backend: Rendezvous | None = None
    rdzv_endpoint: Annotated[str, Field(max_length=1024)] | None = None
    port: Port | None = None


class Scheduling(Spec):
    """Where pods may run, and before whom."""

    scheduler: Word | None = None
    priority_class_name: Word | None = None
    node_selector: Labels = Field(default_factory=dict)
    affinity: Anything | None = None
    tolerations: Annotated[list[Anything], Field(max_length=64)] = Field(default_factory=list)


class Claim(Spec):
    """A volume for a job. `claimName` names a claim that is there already."""

    model_config = rules(*positive("size", "sizePerGPU"))

    enabled: bool = False
    size_per_gpu: Annotated[Quantity | None, Field(alias="sizePerGPU")] = None
    size: Quantity | None = None
    storage_class: Word | None = None
    access_mode: AccessMode | None = None
    mount_path: Word | None = None
    claim_name: Name | None = None


class Storage(Spec):
    """The volumes of a job. The workspace goes with the job; datasets and checkpoints outlive it."""

    shm_size_per_gpu: Annotated[Quantity | None, Field(alias="shmSizePerGPU")] = None
    workspace: Claim | None = None
    datasets: Claim | None = None
    checkpoints: Claim | None = None


class Mount(Spec):
    """A further mount in the container `trainer`."""

    name: Name
    mount_path: Word
    sub_path: Word | None = None
    read_only: bool = False


class Volumes(Spec):
    """Further volumes of a job."""

    additional_mounts: Annotated[list[Mount], Field(max_length=64)] = Field(default_factory=list)
    additional_volumes: Annotated[list[Named], Field(max_length=64)] = Field(default_factory=list)
