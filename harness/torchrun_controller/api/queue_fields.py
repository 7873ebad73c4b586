"""TorchrunQueue: spec and status."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.torchrun_controller.api.condition_type import Condition
from harness.torchrun_controller.api.field_types import (
    Anything,
    Gpus,
    Labels,
    Name,
    Named,
    Quantity,
    Spec,
    Status,
    Time,
    Word,
    rule,
    rules,
)
from harness.torchrun_controller.api.permissions import Privilege, grantable
from harness.torchrun_controller.api.pod_template_fields import Permitted, PodSpec
from harness.torchrun_controller.api.shared_fields import (
    Distributed,
    PullPolicy,
    Scheduling,
    Storage,
)

Override = Literal["image", "distributed", "scheduling", "storage", "env", "volumes"]
Names = Annotated[list[Name], Field(max_length=256)]
FieldPath = Annotated[str, Field(json_schema_extra={"enum": grantable()}, max_length=64)]


class Share(Spec):
    """A queue's share of one resource in kai-scheduler. -1 means no limit."""

    quota: int = -1
    limit: int = -1
    over_quota_weight: int = 1


class Shares(Spec):
    cpu: Share = Field(default_factory=Share)
    gpu: Share = Field(default_factory=Share)
    memory: Share = Field(default_factory=Share)


class KaiQueue(Spec):
    """A kai-scheduler queue, with the fields from the original operator's code (`kaiQueue` in its README)."""

    name: Name
    parent_queue: Name = "default"
    resources: Shares = Field(default_factory=Shares)


class NodeResources(Spec):
    """The resources of a whole node. A pod with half of the GPUs gets half of the CPUs and memory."""

    gpus: Gpus = 0
    cpus: Quantity | None = None
    memory: Quantity | None = None
    gpu_type: Annotated[str, Field(max_length=63)] | None = None


class PodMetadata(Spec):
    labels: Labels = Field(default_factory=dict)
    annotations: Labels = Field(default_factory=dict)


class PodTemplate(Spec):
    """The pod template for all jobs in a queue. The first container is `trainer`."""

    metadata: PodMetadata = Field(default_factory=PodMetadata)
    spec: PodSpec = Field(default_factory=PodSpec)


class ResourceTemplate(Spec):
    """An additional object that is created for a queue, e.g. the claim for its datasets."""

    name: Name
    name_mode: Literal["exact", "prefix"] = "exact"
    template: Permitted
    immutable: bool = False


class Overrides(Spec):
    """What a queue's jobs may set in addition to the fields that every job may set (permissions.py).

    Anyone who may create a TorchrunJob can read the listed Secrets, ConfigMaps and claims.
    """

    allowed: Annotated[list[Override], Field(max_length=6)] = Field(
        default=["image", "distributed", "scheduling", "storage", "env", "volumes"]
    )
    """The groups of fields that jobs may set. No job of the queue may set a field of another group."""
    images: Annotated[list[Word], Field(max_length=256)] = Field(default_factory=list)
    """Permitted images. An entry that ends with * permits all images that begin with the text before it."""
    secrets: Names = Field(default_factory=list)
    config_maps: Names = Field(default_factory=list)
    claims: Names = Field(default_factory=list)
    priority_classes: Names = Field(default_factory=list)
    tolerations: Annotated[list[Anything], Field(max_length=64)] = Field(default_factory=list)
    volumes: Annotated[list[Anything], Field(max_length=64)] = Field(default_factory=list)
    """Permitted volumes, without their names. A job's volume must equal one of them."""
    labels: Names = Field(default_factory=list)
    """Permitted label keys."""
    annotations: Names = Field(default_factory=list)
    """Permitted annotation keys."""
    fields: Annotated[list[FieldPath], Field(max_length=64)] = Field(default_factory=list)
    """Paths of additional permitted job fields, e.g. scheduling.affinity."""


class QueueSpec(Spec):
    model_config = rules(
        rule(
            "!(has(self.queue) && has(self.kaiQueue))",
            "set either queue or kaiQueue, not both",
        ),
        rule(
            "!(has(self.localQueue) && has(self.clusterQueue))",
            "set either localQueue (an existing queue) or clusterQueue (the controller creates a "
            "LocalQueue), not both",
        ),
    )

    queue: KaiQueue | None = None
    kai_queue: Name | None = None
    parent_kai_queue: Name | None = None
    local_queue: Name | None = None
    cluster_queue: Name | None = None
    image: Word | None = None
    image_pull_policy: PullPolicy = "IfNotPresent"
    working_dir: Word | None = None
    node_resources: NodeResources = Field(default_factory=NodeResources)
    distributed: Distributed = Field(default_factory=Distributed)
    storage: Storage = Field(default_factory=Storage)
    scheduling: Scheduling = Field(default_factory=Scheduling)
    pod_template: PodTemplate = Field(default_factory=PodTemplate)
    service_account_name: Name = "default"
    distribution: Literal["Packed", "BestFit"] = "Packed"
    """Packed uses the fewest nodes with equal shares. BestFit uses the fewest pods that currently fit."""
    env: Annotated[list[Named], Field(max_length=512)] = Field(default_factory=list)
    resources: Annotated[list[ResourceTemplate], Field(max_length=64)] = Field(default_factory=list)
    overrides: Overrides = Field(default_factory=Overrides)
    privileges: Annotated[list[Privilege], Field(max_length=14)] = Field(default_factory=list)
    """The node access that the pod template and the volumes in `overrides` may give to a queue's pods."""


class ResourceStatus(Status):
    name: Word
    kind: Word
    ready: bool
    message: Word = ""


class QueueStatus(Status):
    observed_generation: int | None = None
    phase: Literal["Active", "Updating", "Terminating"] | None = None
    conditions: Annotated[list[Condition], Field(max_length=16)] = Field(default_factory=list)
    local_queue: Word | None = None
    last_update_time: Time | None = None
    resources_ready: bool | None = None
    resource_statuses: Annotated[list[ResourceStatus], Field(max_length=64)] = Field(default_factory=list)
