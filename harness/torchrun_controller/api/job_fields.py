"""TorchrunJob: spec and status."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.condition_type import Condition
from harness.torchrun_controller.api.field_types import (
    Count,
    Gpus,
    Labels,
    Name,
    Named,
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
from harness.torchrun_controller.api.shared_fields import (
    AccessMode,
    Distributed,
    PullPolicy,
    Scheduling,
    Storage,
    Volumes,
)

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


class WorkspaceStorage(Spec):
    """The source of the job's code: the user's folder (zip), git, S3, or an existing claim."""

    model_config = rules(
        rule(
            "!(self.source in ['git', 's3']) || has(self.url)",
            "a workspace of source git or s3 needs a url",
        ),
        rule(
            "self.source != 'existing' || has(self.claimName)",
            "a workspace of source existing needs the claimName of its claim",
        ),
        rule("!has(self.ref) || self.source == 'git'", "ref applies only to source git"),
        rule(
            "self.source != 's3' || !has(self.url) || self.url.matches('^s3://[^/]+')",
            "a workspace of source s3 needs a url of the form s3://bucket/prefix",
        ),
        *positive("size"),
    )

    source: Literal["zip", "git", "s3", "existing"] = "zip"
    url: Annotated[str, Field(max_length=2048)] | None = None
    ref: Annotated[str, Field(max_length=256)] | None = None
    """A branch, tag or commit. The default is the repository's default branch."""
    claim_name: Name | None = None
    secret_name: Name | None = None
    """A Secret whose keys become environment variables for the download.

    For S3, these are AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL. For git, they
    are GIT_USERNAME and GIT_PASSWORD.
    """
    size: Quantity = "10Gi"
    """The workspace's size per GPU, or its total size for a job without GPUs."""
    storage_class: Word | None = None
    access_mode: AccessMode | None = None
    mount_path: Annotated[str, Field(max_length=1024, pattern="^/.+")] = "/app"
    image: Word | None = None
    """The image that fetches the workspace. The default is the job's image."""
    image_pull_policy: PullPolicy = "IfNotPresent"


class Reliability(Spec):
    """How often a job is restarted, how long it may run, and how long its objects are kept afterwards."""

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
            "a job with GPUs runs one process per GPU: leave processesPerNode out",
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
        rule(
            "has(self.maxNodes) == has(oldSelf.maxNodes)",
            "a job cannot change between elastic and fixed size: create a new one",
        ),
        rule("!oldSelf.cancel || self.cancel", "a cancelled job stays cancelled: create a new one"),
        *immutable(
            "queue",
            "jobQueue",
            "command",
            "setupCommand",
            "numGPUs",
            "numNodes",
            "minNodes",
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
        """Return the name of the job's TorchrunQueue.

        The CRD requires exactly one of the fields jobQueue and queue.
        """
        return self.job_queue or self.queue or ""


class Workers(Status):
    """The number of pods in the current attempt, by phase."""

    pending: int = 0
    ready: int = 0
    running: int = 0
    failed: int = 0
    succeeded: int = 0


class Waiting(Status):
    """The free GPUs at the given time, reported while a job waits for GPUs."""

    time: Time
    message: Annotated[str, Field(max_length=32768)]


class JobStatus(Status):
    observed_generation: int | None = None
    phase: Phase | None = None
    conditions: Annotated[list[Condition], Field(max_length=16)] = Field(default_factory=list)
    queue: Word | None = None
    job_name: Word | None = None
    job_id: Annotated[Word | None, Field(alias="jobID")] = None
    """The UID of the job's JobSet."""
    num_nodes: int | None = None
    processes_per_node: int | None = None
    torchrun_command: Annotated[str, Field(max_length=131072)] | None = None
    workers: Workers = Field(default_factory=Workers)
    workers_status: Word | None = None
    restarts: int = 0
    start_time: Time | None = None
    completion_time: Time | None = None
    waiting: Waiting | None = None
    """The free GPUs, reported while the job waits. The report is first updated after a minute, and then
    whenever the waiting time has doubled, so a job that waits for hours causes only a few writes.
    """
    message: Annotated[str, Field(max_length=32768)] | None = None
