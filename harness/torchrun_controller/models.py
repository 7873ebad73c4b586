"""TorchrunQueue and TorchrunJob as typed models. The CRDs are generated from them (crd.py).

They have the fields of the original's README (`jobQueue`, `numGPUs`, `kaiQueue`, `nodeResources`, `storage`)
and of its code (`queue`, `numNodes`, `podTemplate`, `resources`). What an object leaves out has the same
default in the CRD and here, also where the object around it is left out.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.torchrun_controller import names
from harness.torchrun_controller.conditions import Condition
from harness.torchrun_controller.fields import (
    Anything,
    Count,
    Gpus,
    Labels,
    Name,
    Named,
    Permitted,
    PodSpec,
    Quantity,
    Seconds,
    Spec,
    Status,
    Text,
    Time,
    Word,
    first,
    immutable,
    positive,
    rule,
    rules,
    validations,
)

Backend = Literal["nccl", "gloo", "mpi"]
Rendezvous = Literal["c10d", "static", "etcd-v2"]
AccessMode = Literal["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod"]
PullPolicy = Literal["Always", "IfNotPresent", "Never"]
Port = Annotated[int, Field(ge=1024, le=65535)]
Override = Literal["image", "distributed", "scheduling", "storage", "env", "volumes"]
Phase = Literal[
    "Pending",
    "Syncing",
    "Queued",
    "Running",
    "Suspended",
    "Preempted",
    "Succeeded",
    "Failed",
    "TimedOut",
    "Cancelled",
    "Deleted",
    "Unknown",
]
FINISHED: frozenset[Phase] = frozenset({"Succeeded", "Failed", "TimedOut", "Cancelled"})


# -- what queues and jobs share --------------------------------------------------------------------------
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


# -- TorchrunQueue ---------------------------------------------------------------------------------------
class Share(Spec):
    """What kai-scheduler gives a queue of one resource. -1 means no limit."""

    quota: int = -1
    limit: int = -1
    over_quota_weight: int = 1


class Shares(Spec):
    cpu: Share = Field(default_factory=Share)
    gpu: Share = Field(default_factory=Share)
    memory: Share = Field(default_factory=Share)


class KaiQueue(Spec):
    """A queue of kai-scheduler, as the original's code names it (`kaiQueue` in its README)."""

    name: Name
    parent_queue: Name = "default"
    resources: Shares = Field(default_factory=Shares)


class NodeResources(Spec):
    """What a whole node has. A job that takes half of its GPUs gets half of the rest."""

    gpus: Gpus = 0
    cpus: Quantity | None = None
    memory: Quantity | None = None
    gpu_type: Annotated[str, Field(max_length=63)] | None = None


class PodMetadata(Spec):
    labels: Labels = Field(default_factory=dict)
    annotations: Labels = Field(default_factory=dict)


class PodTemplate(Spec):
    """The pod of every job of a queue. Its first container is `trainer`."""

    metadata: PodMetadata = Field(default_factory=PodMetadata)
    spec: PodSpec = Field(default_factory=dict)


class ResourceTemplate(Spec):
    """A further object that comes with a queue, e.g. the claim of its datasets."""

    name: Name
    name_mode: Literal["exact", "prefix"] = "exact"
    template: Permitted
    immutable: bool = False


class Overrides(Spec):
    """What the jobs of a queue may say otherwise than the queue."""

    allowed: Annotated[list[Override], Field(max_length=6)] = Field(
        default=["image", "distributed", "scheduling", "storage", "env", "volumes"]
    )


class QueueSpec(Spec):
    model_config = rules(
        rule(
            "!(has(self.queue) && has(self.kaiQueue))",
            "queue and kaiQueue say the same: expected one of them",
        ),
        rule(
            "!(has(self.localQueue) && has(self.clusterQueue))",
            "localQueue names a queue that is there, clusterQueue lets the controller make one: "
            "expected one of them",
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
    env: Annotated[list[Named], Field(max_length=512)] = Field(default_factory=list)
    resources: Annotated[list[ResourceTemplate], Field(max_length=64)] = Field(default_factory=list)
    overrides: Overrides = Field(default_factory=Overrides)


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


# -- TorchrunJob -----------------------------------------------------------------------------------------
class WorkspaceStorage(Spec):
    """Where the code comes from: synced from the user's folder (zip), git, S3, or a claim that has it."""

    model_config = rules(
        rule(
            "!(self.source in ['git', 's3']) || has(self.url)",
            "a workspace of source git or s3 needs a url",
        ),
        rule(
            "self.source != 'existing' || has(self.claimName)",
            "a workspace of source existing needs the claimName that holds it",
        ),
        rule("!has(self.ref) || self.source == 'git'", "ref is for source git alone"),
        rule(
            "self.source != 's3' || !has(self.url) || self.url.matches('^s3://[^/]+')",
            "a workspace of source s3 needs a url of the form s3://bucket/prefix",
        ),
        *positive("size"),
    )

    source: Literal["zip", "git", "s3", "existing"] = "zip"
    url: Annotated[str, Field(max_length=2048)] | None = None
    ref: Annotated[str, Field(max_length=256)] | None = None
    """A branch, a tag or a commit. Without one, the repository's default branch."""
    claim_name: Name | None = None
    secret_name: Name | None = None
    """A Secret whose keys are the environment of the download: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
    AWS_REGION, AWS_ENDPOINT_URL; GIT_USERNAME, GIT_PASSWORD."""
    size: Quantity = "10Gi"
    """Size for each GPU, or of all for a job without GPUs."""
    storage_class: Word | None = None
    access_mode: AccessMode | None = None
    mount_path: Annotated[str, Field(max_length=1024, pattern="^/.+")] = "/app"
    image: Word | None = None
    """The image that fetches the workspace. Without one, the job's own."""
    image_pull_policy: PullPolicy = "IfNotPresent"


class Reliability(Spec):
    """How often a job may fail, how long it may take, and how long it is kept."""

    max_restarts: Annotated[int, Field(ge=0, le=1000)] = 3
    restart_policy: Literal["OnFailure", "Never"] = "OnFailure"
    ttl_seconds_after_finished: Seconds = 3600
    active_deadline_seconds: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None


Env = Annotated[
    list[Named],
    Field(
        max_length=512,
        json_schema_extra=validations(
            rule(
                f"self.all(it, !it.name.matches(r'^({names.RESERVED})$'))",
                "the controller and torchrun use PET_…, TORCHRUN_… and JOB_COMPLETION_INDEX: leave them out",
            )
        ),
    ),
]


class JobSpec(Spec):
    model_config = rules(
        rule("has(self.queue) != has(self.jobQueue)", "expected the TorchrunQueue in jobQueue or in queue"),
        rule(
            "!has(self.numNodes) || (!has(self.minNodes) && !has(self.maxNodes))",
            "numNodes is for a job of fixed size, minNodes and maxNodes for an elastic one: not both",
        ),
        rule(
            "has(self.minNodes) == has(self.maxNodes) && "
            "(!has(self.minNodes) || self.minNodes <= self.maxNodes)",
            "expected minNodes and maxNodes together, minNodes not above maxNodes",
        ),
        rule(
            "!has(self.numGPUs) || self.numGPUs == 0 || !has(self.processesPerNode)",
            "a job with GPUs has a process for each: leave processesPerNode out",
        ),
        *(
            first(
                f"!has(self.numGPUs) || !has(self.{nodes}) || self.numGPUs % self.{nodes} == 0",
                f"numGPUs do not split evenly over {nodes}: expected a multiple of it, or leave {nodes} out",
            )
            for nodes in ("numNodes", "maxNodes")
        ),
        first(
            "!has(self.minNodes) || !has(self.maxNodes) || self.minNodes == self.maxNodes || "
            "!has(self.distributed) || !has(self.distributed.rdzvBackend) || "
            "self.distributed.rdzvBackend != 'static'",
            "a static rendezvous has a fixed size: expected c10d or etcd-v2 for an elastic job",
        ),
        first(r"self.command.matches(r'\S')", "expected a command, seen blanks"),
        first(
            r"!self.command.matches(r'^\s*torchrun(\s|$)')",
            "the controller starts torchrun: expected the command of one rank, e.g. python x.py",
        ),
        rule("!oldSelf.cancel || self.cancel", "a cancelled job stays cancelled: make a new one"),
        *immutable(
            "queue",
            "jobQueue",
            "command",
            "setupCommand",
            "numGPUs",
            "numNodes",
            "minNodes",
            "maxNodes",
            "processesPerNode",
            "image",
            "distributed",
        ),
    )

    queue: Name | None = None
    job_queue: Name | None = None
    command: Text
    setup_command: Text | None = None
    num_gpus: Annotated[Gpus | None, Field(alias="numGPUs")] = None
    num_nodes: Count | None = None
    min_nodes: Count | None = None
    max_nodes: Count | None = None
    processes_per_node: Count | None = None
    image: Word | None = None
    distributed: Distributed = Field(default_factory=Distributed)
    scheduling: Scheduling = Field(default_factory=Scheduling)
    storage: Storage = Field(default_factory=Storage)
    workspace_storage: WorkspaceStorage | None = None
    reliability: Reliability = Field(default_factory=Reliability)
    env: Env = Field(default_factory=list)
    volumes: Volumes = Field(default_factory=Volumes)
    suspend: bool = False
    cancel: bool = False
    annotations: Labels = Field(default_factory=dict)
    labels: Labels = Field(default_factory=dict)

    @property
    def queue_name(self) -> str:
        """Return the name of its TorchrunQueue, whichever field has it. The CRD asks for one of them."""
        return self.job_queue or self.queue or ""


class Workers(Status):
    """Pods of the attempt that runs now."""

    pending: int = 0
    ready: int = 0
    running: int = 0
    failed: int = 0
    succeeded: int = 0


class JobStatus(Status):
    observed_generation: int | None = None
    phase: Phase | None = None
    conditions: Annotated[list[Condition], Field(max_length=16)] = Field(default_factory=list)
    queue: Word | None = None
    job_name: Word | None = None
    job_id: Annotated[Word | None, Field(alias="jobID")] = None
    """UID of its JobSet."""
    num_nodes: int | None = None
    processes_per_node: int | None = None
    torchrun_command: Annotated[str, Field(max_length=131072)] | None = None
    workers: Workers = Field(default_factory=Workers)
    workers_status: Word | None = None
    restarts: int = 0
    start_time: Time | None = None
    completion_time: Time | None = None
    message: Annotated[str, Field(max_length=32768)] | None = None
