"""Data types for decisions: the snapshot of a job or queue, and the actions.

The module also contains functions that count pods.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from harness.core.kubernetes import Object, condition
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.models import JobStatus, QueueStatus, Workers
from harness.torchrun_controller.api.rejected import Rejected
from harness.torchrun_controller.plan.capacity import Capacity


@dataclass(frozen=True)
class Create:
    """An action that creates an object, unless an object of the same name exists."""

    document: Object


@dataclass(frozen=True)
class Check:
    """An action that makes the API server validate an object in a strict dry run.

    After a rejection, the remaining actions are skipped.

    `alike` is the same object, with a fixed name in place of the job's name. The dry run is skipped if the
    API server has recently accepted an object with an equal `alike`.
    """

    document: Object
    alike: Object


@dataclass(frozen=True)
class Delete:
    """An action that deletes the object with the given UID, and all objects that it owns.

    If a resource version is given, the object is deleted only if it still has this version.
    """

    api_version: str
    kind: str
    name: str
    uid: str
    resource_version: str | None = None


@dataclass(frozen=True)
class Finalizers:
    """An action that sets the finalizers of a TorchrunQueue."""

    finalizers: list[str]


@dataclass(frozen=True)
class DeleteParts:
    """An action that deletes the Secrets and the StatefulSet that store the code of the job with the given
    UID."""

    uid: str


Action = Check | Create | Delete | DeleteParts | Finalizers


@dataclass(frozen=True)
class Decision:
    """The result of a reconcile: the new status, the actions to execute, and the time of the next reconcile
    if no event occurs earlier."""

    status: JobStatus
    actions: list[Action] = field(default_factory=list)
    requeue_at: datetime | None = None
    unexplained: bool = False
    """Whether pods are late and none of the watched objects explains the delay. The controller then reads
    Events."""


@dataclass(frozen=True)
class QueueDecision:
    status: QueueStatus
    actions: list[Action] = field(default_factory=list)


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of the objects of one job."""

    queue: Object | None = None
    jobset: Object | None = None
    workload: Object | None = None
    """The Workload that Kueue created for the JobSet."""
    pods: list[Object] = field(default_factory=list)
    claims: list[Object] = field(default_factory=list)
    capacity: Capacity | None = None
    """The cluster's nodes and their pods, or None if they are not known."""
    waits_in: Object | None = None
    """The job's TorchrunQueue, which is needed for the message of a job that waits for GPUs."""
    priority_classes: frozenset[str] | None = None
    """The names of all PriorityClasses, or None if the controller is not allowed to read them."""
    rejected: Rejected | None = None
    """The error with which the API server rejected one of the job's objects during this reconcile, or
    None."""
    no_etcd: bool = False
    """Whether the job needs the default etcd, but the default etcd's Service does not exist."""
    foreign_service: bool = False
    """Whether the Service with the job's name belongs to something other than the JobSet. This is checked
    only after a rank could not resolve the name of node 0."""
    silent: tuple[datetime | None, datetime] | None = None
    """The result of a check for silent ranks, or None if the logs were not checked. The first value is the
    time of the last log line, or None if not all ranks are silent. The second value is the time of the next
    check."""
    warnings: list[Object] | None = None
    """The Events in the job's namespace, oldest first, or None if they were not read."""


@dataclass(frozen=True)
class QueueSnapshot:
    """A snapshot of the objects of one TorchrunQueue."""

    local_queue: Object | None = None
    resources: dict[tuple[str, str], Object] = field(default_factory=dict)
    """The existing objects from the queue's resource templates, keyed by (kind, name)."""
    kai_queue: Object | None = None
    kai_forbidden: bool = False
    """Whether the controller now runs with `--gang kueue`, but created a kai-scheduler Queue earlier with
    `--gang kai`. The controller then has no permission to delete this Queue or to remove the TorchrunQueue's
    finalizer."""
    kai_parent: Object | None = None
    """The parent of the kai-scheduler Queue. None if the parent does not exist, or if the Queue itself
    already exists."""
    cluster_queue: Object | None = None
    """The ClusterQueue named in the queue's spec. None if the ClusterQueue does not exist, or if the
    LocalQueue already exists."""
    template: str | None = None
    """The result of the pod template's check: the error, "" if the template was accepted, or None if the
    template was not checked."""
    rejected: Rejected | None = None
    """The error with which the API server rejected one of the queue's objects during this reconcile, or
    None."""


def owned(item: Object, uid: str) -> bool:
    """Return whether an object has an owner with the UID `uid`."""
    return any(owner.get("uid") == uid for owner in item["metadata"].get("ownerReferences") or [])


def owned_by_job(item: Object, name: str) -> bool:
    """Return whether an object's owner is a TorchrunJob of this name. The job may have been deleted."""
    owners = item["metadata"].get("ownerReferences") or []
    return any((owner.get("kind"), owner.get("name")) == (names.JOB_KIND, name) for owner in owners)


def ending(item: Object) -> bool:
    return bool(item["metadata"].get("deletionTimestamp"))


def attempt(pods: list[Object], jobset: Object, *, terminating: bool = False) -> list[Object]:
    """Return the pods of the JobSet's current attempt.

    Terminating pods are included only if `terminating` is true.
    """
    number = str((jobset.get("status") or {}).get("restarts") or 0)
    return [
        pod
        for pod in pods
        if (terminating or not ending(pod))
        and (pod["metadata"].get("labels") or {}).get(names.ATTEMPT_LABEL, "0") == number
    ]


def counted(pods: list[Object]) -> Workers:
    """Return the number of pods in each phase.

    Pods that are being scheduled or are pulling an image count as pending.
    """
    phases = [(pod.get("status") or {}).get("phase") for pod in pods]
    return Workers(
        pending=sum(phase in (None, "Pending", "Unknown") for phase in phases),
        running=phases.count("Running"),
        ready=sum(
            phase == "Running" and condition(pod, "Ready").get("status") == "True"
            for pod, phase in zip(pods, phases, strict=True)
        ),
        failed=phases.count("Failed"),
        succeeded=phases.count("Succeeded"),
    )
